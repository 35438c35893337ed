"""`pdctl plan`: what each prefill rank writes into each decode rank, before anything runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pdctl.errors import FindingsError, InputError

if TYPE_CHECKING:
    from pdctl.check.groups import Group
    from pdctl_transfer.layout.manifest import Manifest, Role
    from pdctl_transfer.plan import Plan


def command(
    first: Annotated[Path, typer.Argument(metavar="A", help="A manifest or a fleet file.")],
    second: Annotated[Path | None, typer.Argument(metavar="[B]", help="The other side, in either order.")] = None,
    output: Annotated[
        Literal["table", "json", "ndjson"],
        typer.Option("-o", "--output", help="json: what the table says; ndjson: one line a copy, pdctl.plan/v1."),
    ] = "table",
) -> int:
    """Print the address-free plan of a pair: who writes to whom, how many bytes, in how many copies.

    A manifest (`pdctl layout … -o json`) needs its peer; a fleet file holds both sides. Sizes are of one item of every
    entry: one page of KV, one slot of recurrent state. Exit status: 0 planned, 2 unusable input, 3 no plan exists.
    """
    prefill, decode = _sides([path for path in (first, second) if path is not None])

    from pdctl_transfer.errors import PlanError
    from pdctl_transfer.plan import make_plan

    try:
        plan = make_plan(prefill, decode)
    except PlanError as error:
        files = " ".join(str(path) for path in (first, second) if path is not None)
        hint = f"`pdctl check {files}` judges the whole pair; `pdctl explain {error.code}`"
        raise FindingsError(error.message, code=error.code, hint=hint) from error
    if output == "ndjson":
        _print_lines(plan)
    elif output == "json":
        _print_document(plan, prefill, decode)
    else:
        _print_table(plan, prefill, decode)
        _note_what_is_left_out(prefill, decode)
    return 0


def _sides(paths: list[Path]) -> "tuple[Manifest, Manifest]":
    """The one prefill and the one decode layout of these files. InputError where there is none, or more than one."""
    from pdctl.check.groups import merged
    from pdctl.check.inputs import is_manifest, manifest_group, read_bytes, require_both_roles

    groups: list[Group] = []
    for path in paths:
        data = read_bytes(path)
        if is_manifest(data):
            groups.append(manifest_group(data, path))
        else:
            from pdctl.check.fleets import fleet_groups
            from pdctl.cli.common import usable
            from pdctl.fleet import parse_fleet

            groups += fleet_groups(usable(parse_fleet(data, path)))
    where = ", ".join(map(str, paths))
    require_both_roles(groups, where)
    groups = merged(groups)
    return _only("prefill", groups, where), _only("decode", groups, where)


def _only(role: "Role", groups: "list[Group]", where: str) -> "Manifest":
    from pdctl_transfer.rules import Finding

    found = [group for group in groups if group.role == role]
    for group in found:
        for outcome in group.blocked:
            if isinstance(outcome, Finding):
                raise FindingsError(f"{group.name} has no layout: {outcome.params['what']}", code=outcome.code)
        for reason, code in ((group.unknown, "PD1034"), (group.draft, "PD1053")):
            if reason:
                raise FindingsError(f"{group.name}: {reason}: a plan would leave buffers out", code=code)
    if len(found) > 1:
        names = ", ".join(group.name for group in found)
        hint = f"write the layout of one with `pdctl layout FLEET --role {role} --pool NAME -o json`, and plan that"
        raise InputError(f"{len(found)} {role} layouts ({names}), a plan is of one", where=where, hint=hint)
    return found[0].manifest


def _print_lines(plan: "Plan") -> None:
    import sys
    from itertools import islice

    import msgspec

    lines, encoder = plan.lines(), msgspec.json.Encoder()
    while chunk := list(islice(lines, 4096)):
        sys.stdout.write(encoder.encode_lines(chunk).decode())


def _print_document(plan: "Plan", prefill: "Manifest", decode: "Manifest") -> None:
    """What the table says, sizes in bytes; `merged` is the number of copies once neighbours are one."""
    from pdctl.cli.output import result_json

    ranks = [{"from": a, "to": b, **_numbers(part)} for (a, b), part in _parts_by_rank(plan)]
    state = [{"kind": kind, "tensor": tensor, **_numbers(part)} for (kind, tensor), part in _parts_by_state(plan)]
    result_json(
        {
            "schema": "pdctl.plan.summary/v1",
            "digest": plan.digest,
            "prefill": _described(prefill),
            "decode": _described(decode),
            **_numbers(plan),
            "ranks": ranks,
            "state": state,
        }
    )


def _print_table(plan: "Plan", prefill: "Manifest", decode: "Manifest") -> None:
    import sys

    from pdctl.cli.output import fitted, paint, result, width_of
    from pdctl.redact import clean_line

    result(clean_line(f"prefill {_described(prefill)} → decode {_described(decode)}"))
    result(f"{plan.digest}\n")
    by_rank, by_state = (
        [(*name, *_row(part)) for name, part in parts(plan)] for parts in (_parts_by_rank, _parts_by_state)
    )
    for head, rows in ((("from", "to"), by_rank), (("kind", "tensor"), by_state)):
        columns = (*head, "entries", "bytes", "copies", "merged")
        first, *others = fitted(rows, columns, ("entries", "copies"), width_of(sys.stdout))
        result("\n".join([paint(first, "bold", sys.stdout), *others]) + "\n")
    total = plan.stats
    result(f"{_size(total.bytes)} in {total.pieces} copies, merged into {total.copies}")


def _described(side: "Manifest") -> str:
    pp = f", PP {side.parallel.pp}" if side.parallel.pp > 1 else ""
    return f"{side.engine.name} TP {side.parallel.attn_tp}{pp}, page {side.page_size}"


def _parts_by_rank(plan: "Plan") -> "list[tuple[tuple[str, str], Plan]]":
    """One part a pair of ranks that meet."""
    from pdctl_transfer.plan import RankId

    stages = sorted({pair.dst_pp for pair in plan.pairs})
    ranks = [RankId(pp, tp) for pp in stages for tp in range(plan.decode_tp)]
    met = sorted((src, dst) for dst in ranks for src in plan.sources_of(dst))
    return [((f"pp{src.pp} tp{src.tp}", f"pp{dst.pp} tp{dst.tp}"), plan.between(src, dst)) for src, dst in met]


def _parts_by_state(plan: "Plan") -> "list[tuple[tuple[str, str], Plan]]":
    """One part a kind and tensor, in the order of the plan."""
    import numpy as np

    names = [(pair.kind, pair.tensor) for pair in plan.pairs]
    parts: list[tuple[tuple[str, str], Plan]] = []
    for name in dict.fromkeys(names):
        mine = np.flatnonzero([other == name for other in names])
        parts.append((name, plan.of_pairs(mine)))
    return parts


def _row(part: "Plan") -> tuple[str, str, str, str]:
    """Entries, bytes, copies before and after merging."""
    entries, size, copies, merged = _numbers(part).values()
    return str(entries), _size(size), str(copies), str(merged)


def _numbers(part: "Plan") -> dict[str, int]:
    """The same as numbers."""
    stats = part.stats
    entries = len(set(part.columns.pair.tolist()))
    return {"entries": entries, "bytes": stats.bytes, "copies": stats.pieces, "merged": stats.copies}


def _size(size: int) -> str:
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def _note_what_is_left_out(prefill: "Manifest", decode: "Manifest") -> None:
    """Entries without a partner are not planned: say so, where a reader would otherwise take the plan for whole."""
    from pdctl.cli.output import note
    from pdctl_transfer.layout.pairing import pair_entries

    for side, reason in (("prefill", "no_partner"), ("decode", "no_source")):
        left = [problem for problem in pair_entries(prefill, decode).problems if problem.reason == reason]
        if left:
            kinds = ", ".join(dict.fromkeys(problem.kind for problem in left))
            note(f"not planned: {len(left)} {side} entries without a counterpart ({kinds}); `pdctl check` judges them")
