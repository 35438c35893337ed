"""What the adapters of real engines share: words of a command line, and the interpreter that runs them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pdctl.engines.base import python_of
from pdctl.errors import InputError
from pdctl.fleet.model import Pool


def interpreter(pool: Pool, engine: str) -> str:
    """The Python that runs this engine: the pool's environment; PDCTL_<ENGINE>_PYTHON; the environment that
    `tools/engine_envs.py` built; pdctl's own."""
    if pool.environment is not None:
        return python_of(pool)
    named = os.environ.get(f"PDCTL_{engine.upper()}_PYTHON")
    if named:
        return named
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    built = cache / "pdctl" / "envs" / engine / "bin" / "python"
    return str(built) if built.exists() else python_of(pool)


def flag_of(word: str) -> str | None:
    """`--tp-size` of `--tp-size=2` or `--tp_size`; None for a word that is no flag."""
    return word.partition("=")[0].replace("_", "-") if word.startswith("--") else None


def value_of(args: Sequence[str], flag: str) -> str | None:
    """The value that the words give to a flag, the last one; "" for a switch; None where it is not there."""
    found: str | None = None
    for index, word in enumerate(args):
        if flag_of(word) != flag:
            continue
        if "=" in word:
            found = word.partition("=")[2]
        else:
            after = args[index + 1] if index + 1 < len(args) else ""
            found = "" if after.startswith("--") else after
    return found


def refuse_modelled(pool: Pool, modelled: Mapping[str, str]) -> None:
    """Raise InputError (PD3102) for a flag in `args` that a field of the fleet file sets: two truths, one unseen.

    `modelled`: the engine's flag → the field to write instead.
    """
    for index, word in enumerate(pool.args):
        field = modelled.get(flag_of(word) or "")
        if field is not None:
            raise InputError(
                f"{pool.key}.args.{index}: {word} is what `{field}` sets",
                where=f"{pool.key}.args.{index}",
                code="PD3102",
                hint=f"write `{field}` in the fleet file instead; then `check` judges it and both sides are compared",
            )


def python_path(core: Path, pool: Pool) -> str:
    """PYTHONPATH of an engine: the core first, then what the pool asks for."""
    return os.pathsep.join(part for part in (str(core), pool.env.get("PYTHONPATH", "")) if part)
