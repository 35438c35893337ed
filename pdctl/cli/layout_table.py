"""A manifest as a table for people: per stage what is registered, how it is cut, and what it weighs."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from pdctl.cli.output import table
from pdctl_transfer.layout.manifest import REQUEST_WIDE, Component, Entry, Manifest, Stage
from pdctl_transfer.rules.outcome import Evidence

WIDE = 112
"""Columns that the whole table wants; below, shapes and then layers are left out."""
MIDDLE = 84


def lines(manifest: Manifest, sources: Mapping[str, Evidence], width: int) -> list[str]:
    """The table, as wide as `width` allows."""
    out = _head(manifest)
    for stage in manifest.stages:
        first, end = stage.layers
        out += ["", f"stage {stage.pp_rank}  layers {first} to {end - 1}"]
        out += ["  " + line for line in _stage(stage, manifest, width - 2)]
        out += ["  " + line for line in _totals(stage, manifest)]
    if sources:
        rows: list[tuple[str, ...]] = [(name, one.text, one.source) for name, one in sorted(sources.items())]
        out += ["", *table(rows, ("effective", "value", "from"))]
    return out


def _head(manifest: Manifest) -> list[str]:
    engine, model, parallel = manifest.engine, manifest.model, manifest.parallel
    name = f"{model.name} ({model.family})" if model.family else model.name
    version = f" {engine.version}" if engine.version else ""
    sizes = [f"attention TP {parallel.attn_tp}"]
    sizes += [
        f"{label} {size}"
        for label, size in (("CP", parallel.attn_cp), ("PP", parallel.pp), ("DP", parallel.dp))
        if size > 1
    ]
    layout = f" {manifest.kv_layout}" if manifest.kv_layout else ""
    facts = [*sizes, f"page {manifest.page_size}", f"KV {manifest.kv_cache_dtype}{layout}", manifest.transfer.backend]
    if manifest.speculative:
        facts.append("speculative")
    return [f"{manifest.role}  {name} on {engine.name}{version}  ({manifest.origin})", ", ".join(facts)]


def _stage(stage: Stage, manifest: Manifest, width: int) -> list[str]:
    rows = []
    for component in stage.components:
        runs = list(_runs(component))
        if not runs:
            rows.append((f"{component.kind}/{component.index_space}", "-", "0", "", "", "", ""))
        for run in runs:
            one = run[0]
            rows.append(
                (
                    f"{component.kind}/{component.index_space}",
                    one.tensor,
                    str(len(run)),
                    _bytes(one.item_len),
                    _cut(one, manifest.parallel.attn_tp),
                    _layers([entry.layer for entry in run]),
                    _shape(one),
                )
            )
    keep = 7 if width >= WIDE else 6 if width >= MIDDLE else 5
    header = ("component/index", "tensor", "entries", "item bytes", "cut", "layers", "item [outer][units][bytes]")
    return table([row[:keep] for row in rows], header[:keep])


def _runs(component: Component) -> Iterable[list[Entry]]:
    """Entries that follow each other and differ in their layer only."""

    def alike(entry: Entry) -> tuple[object, ...]:
        return (entry.tensor, entry.sharding, entry.outer, entry.groups, entry.inner_bytes, entry.layer in REQUEST_WIDE)

    return (list(run) for _, run in groupby(component.entries, key=alike))


def _cut(entry: Entry, tp: int) -> str:
    if entry.item_len == 0:
        return "empty"
    if entry.sharding == "replicated":
        return "replicated"
    fewest = min(group.heads for group in entry.groups)
    copies = f", {tp // fewest} copies" if fewest < tp else ""
    return f"split{copies}{', flat' if entry.engine_slices == 'flat' else ''}"


def _layers(ids: Sequence[int | None]) -> str:
    """`3, 7, … 47`; ranges where ids follow each other."""
    if any(layer is None for layer in ids):
        return "not stated"
    known = [layer for layer in ids if layer is not None]
    if set(known) & REQUEST_WIDE:
        return "request"
    if known == list(range(known[0], known[0] + len(known))):
        return str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"
    shown = [str(layer) for layer in known]
    return ", ".join(shown if len(shown) <= 4 else [*shown[:2], "…", shown[-1]])


def _shape(entry: Entry) -> str:
    units = " + ".join(
        f"{group.heads}" if group.width == 1 else f"{group.heads}×{group.width}" for group in entry.groups
    )
    return f"[{entry.outer}][{units}][{entry.inner_bytes}]"


def _totals(stage: Stage, manifest: Manifest) -> list[str]:
    """What a token and a request weigh on each rank of the stage."""
    weight: dict[str, int] = {}
    for component in stage.components:
        held = sum(entry.item_len for entry in component.entries)
        weight[component.index_space] = weight.get(component.index_space, 0) + held
    words = []
    for space, what in (("page", "a token"), ("window_page", "a token within the window")):
        if weight.get(space):
            words.append(f"{_bytes(weight[space] // manifest.page_size)} bytes {what}")
    fixed = weight.get("slot", 0) + weight.get("row", 0)
    if fixed:
        words.append(f"{_bytes(fixed)} bytes a request")
    return [f"each rank: {', '.join(words)}"] if words else []


def _bytes(count: int) -> str:
    return f"{count:,}"
