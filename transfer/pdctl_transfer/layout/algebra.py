"""What one rank holds of an entry, and whether a manifest agrees with itself.

The rule is the manifest contract's: an item is `[outer][units][inner_bytes]`, row-major; the unit axis is a
concatenation of groups, and `split` cuts each group on its own, by whole heads. Plain Python integers throughout, so a
manifest with absurd sizes is judged, not wrapped around.
"""

from collections.abc import Iterator
from itertools import pairwise

from msgspec import Struct

from pdctl_transfer.errors import PlanError
from pdctl_transfer.layout.manifest import REQUEST_WIDE, Entry, Group, Manifest, Stage

INT64_MAX = 2**63 - 1


class Fault(Struct, frozen=True):
    """One place where a manifest contradicts itself (PD1021) or its split does not divide (PD1004).

    `path` is a JSON path into the document, `found` and `expected` say both sides of the contradiction.
    """

    path: str
    found: str
    expected: str


def divides(heads: int, tp: int) -> bool:
    """Whether `heads` can be split over `tp` ranks: whole heads a rank, or whole ranks a head."""
    return heads % tp == 0 if heads >= tp else tp % heads == 0


def local_heads(group: Group, tp: int, rank: int) -> range:
    """The heads of `group` that rank `rank` of `tp` holds under `split`. PlanError (PD1004) where neither line fits."""
    share = heads_per_rank(group, tp)
    first = rank * share if group.heads >= tp else rank // (tp // group.heads)
    return range(first, first + share)


def heads_per_rank(group: Group, tp: int) -> int:
    """How many heads of `group` each of `tp` ranks holds under `split`; at least one. PlanError as `local_heads`."""
    if not divides(group.heads, tp):
        raise PlanError(f"{group.heads} heads do not split over attention TP {tp}")
    return max(1, group.heads // tp)


def copies_of_head(group: Group, tp: int) -> int:
    """How many consecutive ranks hold each head of `group` under `split`: 1 unless there are fewer heads than ranks."""
    return 1 if group.heads >= tp else tp // group.heads


def total_units(entry: Entry) -> int:
    """Units of the whole unit axis, before it is cut over ranks."""
    return sum(group.heads * group.width for group in entry.groups)


def local_units(entry: Entry, tp: int) -> int:
    """Units of one row that each of `tp` ranks holds; equal for all ranks. PlanError (PD1004) on a bad split."""
    if entry.sharding == "replicated":
        return total_units(entry)
    return sum(heads_per_rank(group, tp) * group.width for group in entry.groups)


def item_len(entry: Entry, tp: int) -> int:
    """Bytes of one item on each of `tp` ranks: outer × local units × inner_bytes."""
    return entry.outer * local_units(entry, tp) * entry.inner_bytes


def is_placeholder(entry: Entry) -> bool:
    """Whether the entry only keeps its place (a layer that shares another's buffer): nothing is copied."""
    return entry.inner_bytes == 0


def num_layers(manifest: Manifest) -> int:
    """Layers that the target model computes: the end of the last stage. Drafts have ids from here on."""
    return max((stage.layers[1] for stage in manifest.stages), default=0)


def is_request_wide(layer: int | None) -> bool:
    """Whether the id is one of the reserved ids: such an entry belongs to the request, not to a layer."""
    return layer in REQUEST_WIDE


def is_draft(layer: int | None, layers: int) -> bool:
    """Whether the id belongs to a draft model, where the target has `layers` layers."""
    return layer is not None and layer >= layers and layer not in REQUEST_WIDE


def computes(stage: Stage, layer: int) -> bool:
    """Whether the stage computes the layer."""
    return stage.layers[0] <= layer < stage.layers[1]


def entries_of(manifest: Manifest) -> Iterator[tuple[str, Entry]]:
    """Every entry with its JSON path, in manifest order."""
    for s, stage in enumerate(manifest.stages):
        for c, component in enumerate(stage.components):
            for e, entry in enumerate(component.entries):
                yield f"$.stages[{s}].components[{c}].entries[{e}]", entry


def split_faults(manifest: Manifest) -> list[Fault]:
    """Splits that do not divide (PD1004). Entries whose numbers are senseless are left to `faults`."""
    tp = manifest.parallel.attn_tp
    found = []
    for path, entry in entries_of(manifest):
        if entry.sharding != "split" or tp < 1:
            continue
        for g, group in enumerate(entry.groups):
            if group.heads >= 1 and not divides(group.heads, tp):
                wanted = f"a multiple or a divisor of attention TP {tp}"
                found.append(Fault(f"{path}.groups[{g}].heads", str(group.heads), wanted))
    return found


def faults(manifest: Manifest) -> list[Fault]:
    """Everywhere the manifest contradicts itself (PD1021), in document order; empty where it does not."""
    return [*_size_faults(manifest), *_stage_faults(manifest), *_kind_faults(manifest), *_entry_faults(manifest)]


def _size_faults(manifest: Manifest) -> Iterator[Fault]:
    parallel = manifest.parallel
    sizes = {
        "$.parallel.attn_tp": parallel.attn_tp,
        "$.parallel.attn_cp": parallel.attn_cp,
        "$.parallel.pp": parallel.pp,
        "$.parallel.dp": parallel.dp,
        "$.page_size": manifest.page_size,
    }
    for path, value in sizes.items():
        if value < 1:
            yield Fault(path, str(value), "at least 1")


def _stage_faults(manifest: Manifest) -> Iterator[Fault]:
    pp = manifest.parallel.pp
    if len(manifest.stages) != pp:
        yield Fault("$.stages", f"{len(manifest.stages)} stages", f"{pp}, as $.parallel.pp says")
    seen: set[int] = set()
    for s, stage in enumerate(manifest.stages):
        path = f"$.stages[{s}]"
        if stage.pp_rank in seen:
            yield Fault(f"{path}.pp_rank", str(stage.pp_rank), "each rank once")
        elif not 0 <= stage.pp_rank < max(pp, 1):
            yield Fault(f"{path}.pp_rank", str(stage.pp_rank), f"0 to {pp - 1}, as $.parallel.pp says")
        seen.add(stage.pp_rank)
        start, end = stage.layers
        if not 0 <= start <= end:
            yield Fault(f"{path}.layers", f"[{start}, {end}]", "0 <= start <= end")
    order = sorted(range(len(manifest.stages)), key=lambda s: manifest.stages[s].pp_rank)
    for before, after in pairwise(order):
        end, start = manifest.stages[before].layers[1], manifest.stages[after].layers[0]
        if start != end:
            what = "overlaps" if start < end else "leaves a gap after"
            yield Fault(f"$.stages[{after}].layers[0]", f"{start}, which {what} stage {before}", f"{end}")


def _kind_faults(manifest: Manifest) -> Iterator[Fault]:
    """One kind has one list of indices, so it has one index space."""
    spaces: dict[str, str] = {}
    for s, stage in enumerate(manifest.stages):
        for c, component in enumerate(stage.components):
            first = spaces.setdefault(component.kind, component.index_space)
            if component.index_space != first:
                path = f"$.stages[{s}].components[{c}].index_space"
                yield Fault(path, component.index_space, f"{first}, as the other {component.kind} components say")


def _entry_faults(manifest: Manifest) -> Iterator[Fault]:
    tp = manifest.parallel.attn_tp
    for path, entry in entries_of(manifest):
        wrong = list(_number_faults(path, entry))
        yield from wrong
        if wrong or tp < 1:
            continue
        if entry.sharding == "split" and not all(divides(group.heads, tp) for group in entry.groups):
            continue  # PD1004 says it
        computed = item_len(entry, tp)
        if entry.item_len != computed:
            formula = f"outer {entry.outer} × local units {local_units(entry, tp)} × inner_bytes {entry.inner_bytes}"
            yield Fault(f"{path}.item_len", str(entry.item_len), f"{computed} = {formula} at attention TP {tp}")


def _number_faults(path: str, entry: Entry) -> Iterator[Fault]:
    if entry.layer is not None and not 0 <= entry.layer < 2**32:
        yield Fault(f"{path}.layer", str(entry.layer), "0 to 4294967295")
    if entry.outer < 1:
        yield Fault(f"{path}.outer", str(entry.outer), "at least 1")
    if entry.inner_bytes < 0:
        yield Fault(f"{path}.inner_bytes", str(entry.inner_bytes), "at least 0")
    if not entry.groups:
        yield Fault(f"{path}.groups", "none", "at least one group")
    for g, group in enumerate(entry.groups):
        if group.heads < 1:
            yield Fault(f"{path}.groups[{g}].heads", str(group.heads), "at least 1")
        if group.width < 1:
            yield Fault(f"{path}.groups[{g}].width", str(group.width), "at least 1")
    if not 0 <= entry.item_len <= INT64_MAX:
        yield Fault(f"{path}.item_len", str(entry.item_len), "0 to 2^63 - 1")
