"""Whether a model that a fleet file names is there, as `check` and `up` both say it."""

from difflib import get_close_matches
from pathlib import Path

from pdctl.engines.builtin_models import CONFIGS, PREFIX
from pdctl.errors import InputError
from pdctl.inputs import config_file, is_file, is_folder


def builtins_of(engine: str) -> list[str]:
    """The names under which an engine has models of pdctl's own."""
    if engine != "reference":
        return sorted(PREFIX + name for name in CONFIGS)
    from pdctl.engines.reference.config import MODELS

    return sorted(PREFIX + folder.name for folder in MODELS.iterdir() if (folder / "config.json").is_file())


def require_builtin(engine: str, path: str, where: str) -> None:
    """Raise InputError (PD3104), with the nearest name, for a built-in model that the engine does not have."""
    known = builtins_of(engine)
    if path not in known:
        near = get_close_matches(path, known, n=1, cutoff=0.8)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
        raise InputError(f"{engine} cannot serve {path}", where=where, code="PD3104", hint=hint)


def is_there(path: str) -> bool:
    """A folder with a config.json or a params.json, or a name that only the engine can resolve (`org/name`)."""
    folder = Path(path).expanduser()
    looks_local = path.startswith((".", "/", "~")) or is_folder(folder) or is_file(folder)
    return config_file(folder) is not None if looks_local else path.count("/") <= 1


def missing(path: str, where: str, hint: str) -> InputError:
    """PD0011, with the nearest folder beside where it should be."""
    folder = Path(path).expanduser()
    what = "no config.json in it" if is_folder(folder) else "no such folder"
    try:
        beside = [] if is_folder(folder) else [one.name for one in folder.parent.iterdir() if is_folder(one)]
    except OSError:
        beside = []
    near = get_close_matches(folder.name, beside, n=1, cutoff=0.7)
    hint = f"did you mean {folder.with_name(near[0])}?" if near else hint
    return InputError(f"no model at {path}: {what}", where=where, code="PD0011", hint=hint)
