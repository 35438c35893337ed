"""`pdctl check`: will these prefill and decode engines work together?"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pdctl.errors import InputError


def command(
    first: Annotated[
        Path | None,
        typer.Argument(metavar="[A]", help="A fleet file or a manifest, - for standard input; by default fleet.yaml."),
    ] = None,
    second: Annotated[Path | None, typer.Argument(metavar="[B]", help="Another; a manifest needs its peer.")] = None,
    backend: Annotated[
        str | None, typer.Option(metavar="NAME", help="Judge for this transfer backend: mooncake, nixl, mori, ascend.")
    ] = None,
    platform: Annotated[
        Literal["hopper", "sm100", "npu", "cpu"] | None,
        typer.Option(help="Derive a fleet file's layouts for this platform."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder with the config.json, where a fleet's model lies elsewhere."),
    ] = None,
    draft: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder with the draft model's config.json, where it lies elsewhere."),
    ] = None,
    pre: Annotated[bool, typer.Option("--pre", help="Only what needs nothing running (as without --live).")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Read the layouts that the fleet's running engines report.")
    ] = False,
    prove: Annotated[bool, typer.Option("--prove", help="Follow the copy plan byte by byte.")] = False,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="CODES", help="Demote these codes, separated by commas; they stay in sight."),
    ] = None,
    fail_on: Annotated[
        Literal["error", "warning"], typer.Option(help="From which severity on the exit status tells.")
    ] = "error",
    output: Annotated[
        Literal["table", "short", "json", "junit", "sarif"], typer.Option("-o", "--output", help="Form of the report.")
    ] = "table",
) -> int:
    """Will every prefill and decode pair of these files work together? Judged before anything starts.

    A fleet file is judged alone or together with another file; two manifests (`pdctl layout … -o json`) judge each
    other. Exit status: 0 all pairs fit, 3 one does not, 4 only warnings (with --fail-on warning), 2 unusable input.
    """
    if pre and live:
        raise InputError(
            "--pre asks nothing that runs, --live asks what runs", where="--pre, --live", hint="give one of them"
        )
    from pdctl.check import Options, check
    from pdctl.cli.common import given_or_here, known_backend
    from pdctl.report import emit, exit_status

    options = Options(known_backend(backend), platform, model, draft, live, prove, _codes(" ".join(ignore or ())))
    report = check([first or Path(given_or_here(None)), *([second] if second else [])], options)
    emit(report, output)
    return exit_status(report, fail_on)


def _codes(text: str) -> frozenset[str]:
    """The codes of `--ignore`. InputError for one that does not exist: it would ignore nothing, silently."""
    codes = frozenset(filter(None, text.upper().replace(",", " ").split()))
    if not codes:
        return codes
    from pdctl.catalog import entries, nearest

    for code in sorted(codes):
        if code not in entries():
            near = nearest(code)
            raise InputError(f'no code "{code}"', where="--ignore", hint=f"did you mean {near[0]}?" if near else None)
    return codes
