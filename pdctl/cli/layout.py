"""`pdctl layout`: the layout of one side, derived from a config or a fleet file, or read from a manifest."""

import json
import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdctl.cli.output import note, result
from pdctl.derive import ENGINES, PLATFORMS, Derived, Request, derive
from pdctl.errors import FindingsError, InputError
from pdctl.redact import clean_json, clean_line

if TYPE_CHECKING:
    from pdctl.check.fleets import Elsewhere

#: Columns where the output is not a terminal.
PIPED = 120
SIZES = ("tp", "pp", "dp", "cp")


class Form(StrEnum):
    """How to print the layout."""

    table = "table"
    json = "json"


class Role(StrEnum):
    """Which side of the pair."""

    prefill = "prefill"
    decode = "decode"


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="A fleet file or a manifest; after --, flags of the engine.", metavar="[FLEET|MANIFEST]"),
    ] = None,
    engine: Annotated[str | None, typer.Option(help=f"Derive for {', '.join(ENGINES)}.", metavar="NAME")] = None,
    role: Annotated[Role | None, typer.Option(help="Which side.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Folder with the model's config.json; no weights needed.", metavar="DIR")
    ] = None,
    pool: Annotated[str | None, typer.Option(help="The pool of the fleet file, where a role has several.")] = None,
    tp: Annotated[int, typer.Option("--tp", help="Tensor-parallel size of the engine.")] = 1,
    pp: Annotated[int, typer.Option("--pp", help="Pipeline stages.")] = 1,
    dp: Annotated[int, typer.Option("--dp", help="Attention data parallelism within --tp.")] = 1,
    cp: Annotated[int, typer.Option("--cp", help="Attention context parallelism within --tp.")] = 1,
    page_size: Annotated[int | None, typer.Option(help="Tokens a page; by default the engine's.")] = None,
    kv_cache_dtype: Annotated[str | None, typer.Option(help="As the engine takes it.", metavar="D")] = None,
    backend: Annotated[str | None, typer.Option(help="Transfer backend.", metavar="NAME")] = None,
    platform: Annotated[
        str | None, typer.Option(help=f"{', '.join(PLATFORMS)}; hopper is assumed.", metavar="P")
    ] = None,
    speculative: Annotated[
        str | None, typer.Option(help='Speculative decoding, such as \'{"algorithm": "EAGLE"}\'.', metavar="JSON")
    ] = None,
    draft: Annotated[
        Path | None,
        typer.Option(help="Folder with the draft model's config.json, where it lies elsewhere.", metavar="DIR"),
    ] = None,
    output: Annotated[Form, typer.Option("--output", "-o", help="table or json.")] = Form.table,
) -> int:
    """Print the layout of one side: every buffer that takes part in the transfer, and how it is cut over the ranks.

    Three forms: --engine with --role and --model; a FLEET file with --role; a MANIFEST file. Exit status: 0 printed,
    2 unusable input or a side that would not start, 3 a manifest that contradicts itself.
    """
    from pdctl.check.fleets import Elsewhere
    from pdctl.check.inputs import is_manifest, read_bytes
    from pdctl.cli.common import known_backend
    from pdctl.derive.connectors import BACKENDS

    target, flags = _split(words or [], derives=engine is not None)
    given = {
        "--tp": tp if tp != 1 else None,
        "--pp": pp if pp != 1 else None,
        "--dp": dp if dp != 1 else None,
        "--cp": cp if cp != 1 else None,
        "--page-size": page_size,
        "--kv-cache-dtype": kv_cache_dtype,
        "--backend": known_backend(backend, BACKENDS),
        "--speculative": speculative,
    }
    if engine is not None:
        if target is not None:
            raise InputError(f"--engine derives a layout; what is {target} for?", where="pdctl layout")
        derived = _derive(engine, role, model, draft, given, platform, flags)
    elif target is None:
        raise InputError(
            "nothing to lay out",
            where="pdctl layout",
            hint="give --engine, --role and --model DIR, or a fleet file with --role, or a manifest",
        )
    elif not is_manifest(data := read_bytes(Path(target))):
        _refuse_given({**given, "engine flags": flags or None}, "the fleet file says")
        derived = _of_fleet(data, Path(target), role, pool, Elsewhere(Path(model) if model else None, draft), platform)
    else:
        unused = {
            "--role": role,
            "--model": model,
            "--draft": draft,
            "--pool": pool,
            "--platform": platform,
            "engine flags": flags or None,
        }
        _refuse_given({**given, **unused}, "the manifest says")
        derived = _of_manifest(data, target)
    _print(derived, output)
    return 0


def _split(words: list[str], *, derives: bool) -> tuple[str | None, list[str]]:
    """The file, if there is one, and the engine's flags."""
    if words and not words[0].startswith("-"):
        return words[0], words[1:]
    return None, words


def _derive(
    engine: str,
    role: Role | None,
    model: str | None,
    draft: Path | None,
    given: dict[str, Any],
    platform: str | None,
    flags: list[str],
) -> Derived:
    from pdctl.derive.drafts import draft_named
    from pdctl.derive.flags import apply, refuse_other_role, refuse_words
    from pdctl.derive.source import with_draft

    for value, option in ((role, "--role"), (model, "--model")):
        if value is None:
            raise InputError("is missing: --engine derives a layout from a role and a model", where=option)
    assert role is not None
    assert model is not None
    config, source = _config(model, engine)
    names = {"--kv-cache-dtype": "kv_cache_dtype", "--page-size": "page_size"}
    origins = {names.get(option, option.lstrip("-")): option for option, value in given.items() if value is not None}
    request = Request(
        engine=engine,
        role=role.value,
        config=config,
        config_source=source,
        model_name=_served_name(model),
        **{name: size for name in SIZES if (size := given[f"--{name}"]) is not None},
        page_size=given["--page-size"],
        kv_cache_dtype=given["--kv-cache-dtype"] or "auto",
        backend=given["--backend"],
        platform=platform,
        speculative=_speculative(given["--speculative"]),
        origins=origins | ({"platform": "--platform"} if platform else {}),
    )
    for text in refuse_words(engine, flags):
        note(f"note: {text}")
    request = apply(request, flags)
    refuse_other_role(request)
    if draft is not None and draft_named(request.speculative) is None:
        hint = "name the draft in --speculative, or in the engine's flags"
        raise InputError("the speculative settings name no draft model", where="--draft", hint=hint)
    return derive(with_draft(request, draft))


def _config(model: str, engine: str) -> tuple[Any, str]:
    """The config behind `--model`: a folder, or one of pdctl's own tiny models."""
    from pdctl.derive.source import read_config

    if not model.startswith("builtin:"):
        return read_config(Path(model).expanduser())
    from pdctl.check.fleets import builtin_config

    return builtin_config(model, engine, "--model")


def _served_name(model: str) -> str:
    return Path(model.removeprefix("builtin:")).expanduser().resolve().name if model else "model"


def _speculative(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    if text.replace("_", "").isalnum() and text[:1].isalpha() and text not in ("null", "true", "false"):
        return {"algorithm": text}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", where="--speculative", hint='such as {"algorithm": "EAGLE"}') from None
    if found is not None and not isinstance(found, dict):
        raise InputError("expected a JSON object", where="--speculative", hint='such as {"algorithm": "EAGLE"}')
    return found or None


def _of_fleet(
    data: bytes, path: Path, role: Role | None, pool: str | None, elsewhere: "Elsewhere", platform: str | None
) -> Derived:
    from pdctl.check.fleets import derive_pool
    from pdctl.cli.common import usable
    from pdctl.fleet import parse_fleet

    loaded = usable(parse_fleet(data, path))
    if role is None:
        raise InputError("is missing: a fleet has two sides", where="--role", hint="--role prefill or --role decode")
    pools = [one for one in loaded.pools(role.value) if pool in (None, one.name)]
    names = ", ".join(one.name for one in loaded.pools(role.value))
    if not pools:
        raise InputError(f"found {pool}, but the {role.value} pools are {names}", where="--pool")
    if len(pools) > 1:
        raise InputError(f"the {role.value} pools are {names}", where="--pool", hint="say which: --pool NAME")
    return derive_pool(loaded, pools[0], platform, elsewhere)


def _of_manifest(data: bytes, source: str) -> Derived:
    from pdctl.check.inputs import manifest_of
    from pdctl_transfer.layout.algebra import faults

    manifest = manifest_of(data, source)
    if found := faults(manifest):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        what = f"{source} {found[0].path}: found {found[0].found}, expected {found[0].expected}{more}"
        raise FindingsError(what, code="PD1021", hint="derive it again, or correct it where it was edited")
    return Derived(manifest=manifest, sources={})


def _refuse_given(given: dict[str, Any], why: str) -> None:
    """An option that would be ignored is a mistake to be told."""
    for option, value in given.items():
        if value is not None:
            raise InputError(f"has no effect here: {why} it", where=option)


def _print(derived: Derived, output: Form) -> None:
    for text in derived.notes:
        note(f"note: {text}")
    if output is Form.json:
        from pdctl_transfer.layout.read import encode_manifest

        result(clean_json(encode_manifest(derived.manifest, indent=1).decode()))
        return
    from pdctl.cli.layout_table import lines

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPED
    for line in lines(derived.manifest, derived.sources, width):
        result(clean_line(line, None))
