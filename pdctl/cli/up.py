"""`pdctl up`."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from pdctl.cli.common import DrainOption, Format, FormatOption, SkipOption, given_or_here
from pdctl.cli.output import done_anyway, result, result_json
from pdctl.cli.verbosity import tell
from pdctl.errors import InputError


def command(
    fleet: Annotated[
        str | None,
        typer.Argument(metavar="[FLEET]", help="A fleet file; by default fleet.yaml or pdctl.yaml of this folder."),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the phases, command lines and what would change; start nothing.")
    ] = False,
    skip_phase: SkipOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave what runs running if a phase fails.")] = False,
    drain: DrainOption = 30.0,
    output: FormatOption = Format.table,
) -> None:
    """Bring a fleet up, phase by phase; bring one that is up to what its file says now.

    The last phase is a completion through the router. Whatever fails on the way, and Ctrl-C, take everything down
    again unless --keep. What an earlier run left is adopted where it is as planned, and ended otherwise.

    Of a fleet that is up only what differs is restarted, after its requests are done; a unit that failed is started
    again. What still serves is left alone if that fails. Nothing to change: exit status 0.
    """
    from pdctl.fleet import load_fleet
    from pdctl.up.own import require_own

    loaded = load_fleet(given_or_here(fleet))
    require_own(loaded, "up")
    check_phases(skip_phase or ())
    if plan:
        _print_plan(loaded, skip_phase or [], output)
        return
    from pdctl.cli.progress import watcher
    from pdctl.up.phases import NAMES
    from pdctl.up.runner import bring_up

    watch = watcher(max(map(len, NAMES)))
    try:
        state = bring_up(loaded, skip=skip_phase or (), keep=keep, events=watch, drain_s=drain)
    finally:
        watch.close()
    say(state, watch, output)


def say(state: Any, watch: Any, output: Format) -> None:
    """How a bring-up went, of `up` and of `restart`."""
    unchanged = watch.steps and all(step.action == "keep" for step in watch.steps) and not watch.phases
    already, more = ("already ", ", nothing to change") if unchanged else ("", "")
    says = f"{state.fleet} is {already}up at {state.url}{more}"
    with done_anyway(says):
        if output is Format.json:
            result_json(_document(state, watch.steps))
        else:
            result(says)
    if output is Format.table and not unchanged:
        tell(f"  pdctl status {state.fleet} · pdctl logs {state.fleet} · pdctl down {state.fleet}")


def check_phases(names: Sequence[str]) -> None:
    """Raises InputError with the nearest for a phase that there is none of."""
    from difflib import get_close_matches

    from pdctl.up.phases import NAMES

    for name in names:
        if name not in NAMES:
            close = get_close_matches(name, NAMES, n=1)
            hint = f'did you mean "{close[0]}"?' if close else f"the phases are {', '.join(NAMES)}"
            raise InputError(f'no phase "{name}"', where="--skip-phase", hint=hint)


def _document(state: Any, steps: Any) -> dict[str, Any]:
    import msgspec

    return {
        "fleet": state.fleet,
        "phase": state.phase,
        "url": state.url,
        "phases": [{**msgspec.to_builtins(one), "seconds": round(one.seconds, 3)} for one in state.phases],
        "units": [{"name": unit.name, "role": unit.role, "ports": unit.ports} for unit in state.units],
        "changes": changes(steps),
    }


def _command(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Variables and words as a shell takes them, without what is secret."""
    import shlex

    from pdctl.redact import hide_argv, hide_env

    variables = "".join(f"{name}={shlex.quote(value)} " for name, value in hide_env(env).items())
    return variables + shlex.join(hide_argv(argv))


def _node(one: Any) -> dict[str, Any]:
    """One node of an engine, as `--plan -o json` has it."""
    from pdctl.redact import hide_argv, hide_env

    return {"host": one.host, "argv": hide_argv(one.argv), "env": hide_env(one.env)}


def changes(steps: Any) -> list[dict[str, Any]]:
    """What became of each unit of a fleet that ran already, or would."""
    return [{"unit": step.unit, "action": step.action, "why": list(step.why)} for step in steps]


def _print_plan(loaded: Any, skipped: list[str], output: Format) -> None:
    """Ports that are not in the file are shown as chosen now; the run chooses again."""
    from pdctl.cli.common import usable
    from pdctl.cli.progress import change_lines
    from pdctl.redact import hide_argv, hide_env
    from pdctl.up.converge import preview
    from pdctl.up.nodes import unstartable
    from pdctl.up.phases import PHASES

    if "preflight" not in skipped:
        usable(loaded)
    decision = preview(loaded)
    plan = decision.plan
    notes = {one.unit.name: one.notes for one in plan.engines}
    nodes = {one.unit.name: one.nodes for one in plan.engines if one.nodes}
    if output is Format.json:
        phases = [{"name": one.name, "says": one.says, "skipped": one.name in skipped} for one in PHASES]
        units = [
            {"name": u.name, "role": u.role, "argv": hide_argv(u.argv), "env": hide_env(u.env)}
            | ({"nodes": [_node(one) for one in nodes[u.name]]} if u.name in nodes else {})
            for u in plan.units
        ]
        steps = changes(decision.steps) if decision.serving else []
        result_json({"fleet": loaded.fleet.name, "url": plan.url, "phases": phases, "units": units, "changes": steps})
        return
    width = max(len(phase.name) for phase in PHASES)
    for phase in PHASES:
        result(f"{phase.name:<{width}}  {'(skipped)' if phase.name in skipped else phase.says}")
    for unit in plan.units:
        result(f"\n{unit.name}")
        for note_ in notes.get(unit.name, ()):
            result(f"  # {note_}")
        for place, one in enumerate(nodes.get(unit.name, ())):
            result(f"  # node {place}, on {one.host}")
            result(f"  {_command(one.argv, one.env)}")
        if unit.name not in nodes:
            result(f"  {_command(unit.argv, unit.env)}")
    for fault in unstartable(loaded):
        tell(f"{fault.code} {fault.where}  {fault.message}\n  so `up` starts nothing of this")
    if decision.serving:
        result(f"\n{loaded.fleet.name} is up; " + ("nothing to change" if decision.unchanged else "this would change"))
        for line in change_lines(decision.steps):
            result(f"  {line}")
