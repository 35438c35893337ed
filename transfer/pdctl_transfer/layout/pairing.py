"""Which prefill entry feeds which decode entry.

An entry pairs by (kind, layer, tensor, occurrence), over all stages of both sides. Entries without layer ids pair by
position, which is sound only between single stages with equally many entries. What cannot be paired is a `Problem`,
as data: the rules of `check` give it a code, the planner refuses what it cannot plan.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from pdctl_transfer.layout.algebra import computes, is_draft, is_request_wide, num_layers
from pdctl_transfer.layout.manifest import Entry, Manifest, Role

Reason = Literal[
    "no_partner",  # a prefill entry without a decode entry: PD1009, a draft's PD1015
    "no_source",  # a decode entry without a prefill entry: PD1007, nothing for a draft's
    "not_computed",  # a prefill entry of a layer that its stage does not compute: PD1020 where the engine sends it
    "position",  # entries without ids that positions cannot pair soundly: PD1012; not planned
    "engine_position",  # the engine pairs by position, which is not what the ids say: PD1012; planned by id
    "mixed_ids",  # some entries of the component have ids, others none: PD1010; not planned
    "uneven_ids",  # one layer's tensor occurs a different number of times than another's: PD1010; not planned
]


class Place(Struct, frozen=True, gc=False):
    """Where an entry stands in a manifest. `index` counts the stage's entries in order, over its components."""

    stage: int
    pp: int
    component: int
    entry: int
    index: int


class Located(Struct, frozen=True, gc=False):
    """An entry with its place, its kind, and `n`: its occurrence among equal (kind, layer, tensor) of the stage."""

    kind: str
    entry: Entry
    n: int
    place: Place

    @property
    def key(self) -> tuple[str, int | None, str, int]:
        """What pairs entries of two sides."""
        return self.kind, self.entry.layer, self.entry.tensor, self.n


class Pair(Struct, frozen=True, gc=False):
    """A prefill entry and a decode entry that it fills."""

    src: Located
    dst: Located

    @property
    def layer(self) -> int | None:
        """The layer that either side states."""
        return self._named.entry.layer

    @property
    def n(self) -> int:
        """The occurrence of the entry among those of equal kind, layer and tensor."""
        return self._named.n

    @property
    def _named(self) -> Located:
        return self.src if self.dst.entry.layer is None else self.dst


class Problem(Struct, frozen=True, gc=False):
    """What cannot be paired, or only unsoundly. `at` is None where the whole kind is meant."""

    reason: Reason
    side: Role
    kind: str
    text: str
    at: Located | None = None
    draft: bool = False


class Pairing(Struct, frozen=True):
    """All pairs, ordered by decode stage and entry, and all problems."""

    pairs: tuple[Pair, ...]
    problems: tuple[Problem, ...]

    def of(self, *reasons: Reason) -> tuple[Problem, ...]:
        """The problems with one of these reasons."""
        return tuple(problem for problem in self.problems if problem.reason in reasons)


def pair_entries(prefill: Manifest, decode: Manifest) -> Pairing:
    """Pairs the entries of both sides, kind by kind. Pure; raises nothing for any decoded manifest."""
    sources, targets = _by_kind(prefill), _by_kind(decode)
    pairs: list[Pair] = []
    problems: list[Problem] = []
    for kind in dict.fromkeys([*targets, *sources]):
        found, wrong = _pair_kind(kind, sources.get(kind, []), targets.get(kind, []), prefill, decode)
        pairs += found
        problems += wrong
    pairs.sort(key=lambda pair: (pair.dst.place.pp, pair.dst.place.index))
    return Pairing(tuple(pairs), tuple(problems))


def locate(manifest: Manifest) -> Iterator[Located]:
    """Every entry with its place, stages in the order of their ranks."""
    for s, stage in sorted(enumerate(manifest.stages), key=lambda item: item[1].pp_rank):
        seen: Counter[tuple[str, int | None, str]] = Counter()
        index = 0
        for c, component in enumerate(stage.components):
            for e, entry in enumerate(component.entries):
                key = component.kind, entry.layer, entry.tensor
                yield Located(component.kind, entry, seen[key], Place(s, stage.pp_rank, c, e, index))
                seen[key] += 1
                index += 1


def _by_kind(manifest: Manifest) -> dict[str, list[Located]]:
    found: dict[str, list[Located]] = defaultdict(list)
    for located in locate(manifest):
        found[located.kind].append(located)
    return found


def _pair_kind(
    kind: str, sources: list[Located], targets: list[Located], prefill: Manifest, decode: Manifest
) -> tuple[list[Pair], list[Problem]]:
    problems = [*_id_problems("prefill", kind, sources, prefill), *_id_problems("decode", kind, targets, decode)]
    if problems:
        return [], problems
    if sources and targets and _engine_pairs_by_position(kind, prefill, decode):
        problems += _engine_problems(kind, sources, targets, len(prefill.stages), len(decode.stages))
    if sources and targets and (sources[0].entry.layer is None or targets[0].entry.layer is None):
        unsound = _position_problem(kind, sources, targets, prefill, decode)
        if unsound is not None:
            return [], [*problems, unsound]
        return [Pair(src, dst) for src, dst in zip(sources, targets, strict=True)], problems
    found, wrong = _pair_by_id(kind, sources, targets, prefill, decode)
    return found, problems + wrong


def _pair_by_id(
    kind: str, sources: list[Located], targets: list[Located], prefill: Manifest, decode: Manifest
) -> tuple[list[Pair], list[Problem]]:
    usable, problems = _computed(kind, sources, prefill)
    by_key: dict[tuple[str, int | None, str, int], Located] = {}
    for src in usable:
        by_key.setdefault(src.key, src)  # stages come in order: the lowest one that has it writes
    wanted = {dst.key for dst in targets}
    pairs = [Pair(by_key[dst.key], dst) for dst in targets if dst.key in by_key]
    problems += [
        _unpaired("no_partner", "prefill", src, num_layers(prefill)) for key, src in by_key.items() if key not in wanted
    ]
    problems += [_unpaired("no_source", "decode", dst, num_layers(decode)) for dst in targets if dst.key not in by_key]
    return pairs, problems


def _computed(kind: str, sources: list[Located], prefill: Manifest) -> tuple[list[Located], list[Problem]]:
    """Sources that hold something: request-wide, a draft's, or of a layer that their own stage computes."""
    layers = num_layers(prefill)
    usable: list[Located] = []
    idle: dict[int, list[Located]] = defaultdict(list)
    for src in sources:
        layer = src.entry.layer
        stage = prefill.stages[src.place.stage]
        if layer is None or is_request_wide(layer) or is_draft(layer, layers) or computes(stage, layer):
            usable.append(src)
        else:
            idle[src.place.stage].append(src)
    problems = []
    for s, found in idle.items():
        stage = prefill.stages[s]
        ids = _listed(sorted({src.entry.layer for src in found if src.entry.layer is not None}))
        start, end = stage.layers
        text = f"stage {stage.pp_rank} computes layers [{start}, {end}), but registers {ids}"
        problems.append(Problem("not_computed", "prefill", kind, text, found[0]))
    return usable, problems


def _id_problems(side: Role, kind: str, entries: list[Located], manifest: Manifest) -> Iterator[Problem]:
    """Ids that do not cover the entries, or do not cover them evenly."""
    bare = [located for located in entries if located.entry.layer is None]
    if bare and len(bare) < len(entries):
        text = f"{len(entries) - len(bare)} of {len(entries)} entries have a layer id, {len(bare)} have none"
        yield Problem("mixed_ids", side, kind, text, bare[0])
        return
    layers = num_layers(manifest)
    counts: Counter[tuple[int, str, int]] = Counter()
    for located in entries:
        layer = located.entry.layer
        if layer is not None and not is_request_wide(layer) and not is_draft(layer, layers):
            counts[located.place.stage, located.entry.tensor, layer] += 1
    first: dict[tuple[int, str], tuple[int, int]] = {}
    for (stage, tensor, layer), count in counts.items():
        other, expected = first.setdefault((stage, tensor), (layer, count))
        if count != expected:
            text = f"{tensor} occurs {count} times for layer {layer}, {expected} times for layer {other}"
            at = next(x for x in entries if (x.place.stage, x.entry.tensor, x.entry.layer) == (stage, tensor, layer))
            yield Problem("uneven_ids", side, kind, text, at)
            return


def _engine_pairs_by_position(kind: str, *sides: Manifest) -> bool:
    return any(
        component.engine_pairs == "position"
        for manifest in sides
        for stage in manifest.stages
        for component in stage.components
        if component.kind == kind
    )


def _engine_problems(
    kind: str, sources: Sequence[Located], targets: Sequence[Located], prefills: int, decodes: int
) -> Iterator[Problem]:
    """Where the engine's positions pair other entries than the ids do. One stage to several is PD1006's."""
    why = f"picks wrong layers from {prefills} prefill stages" if prefills > 1 else None
    ours, theirs = [x.key for x in sources], [x.key for x in targets]
    if prefills == decodes == 1 and ours != theirs and Counter(ours) == Counter(theirs):
        at, (a, b) = next((i, keys) for i, keys in enumerate(zip(ours, theirs, strict=True)) if keys[0] != keys[1])
        why = f"is wrong: entry {at} is layer {a[1]} {a[2]} on prefill and layer {b[1]} {b[2]} on decode"
    if why is not None:
        yield Problem("engine_position", "prefill", kind, f"the engine pairs {kind} by position, which {why}")


def _position_problem(
    kind: str, sources: Sequence[Located], targets: Sequence[Located], prefill: Manifest, decode: Manifest
) -> Problem | None:
    """Why positions cannot pair these entries, or None where they can."""
    without = " and ".join(
        side for side, entries in (("prefill", sources), ("decode", targets)) if entries[0].entry.layer is None
    )
    if len(prefill.stages) > 1 or len(decode.stages) > 1:
        why = f"there are {len(prefill.stages)} prefill and {len(decode.stages)} decode stages"
    elif len(sources) != len(targets):
        why = f"prefill has {len(sources)} entries and decode {len(targets)}"
    else:
        tensors = zip((x.entry.tensor for x in sources), (x.entry.tensor for x in targets), strict=True)
        differ = next(((i, a, b) for i, (a, b) in enumerate(tensors) if a != b), None)
        if differ is None:
            return None
        why = f"entry {differ[0]} is {differ[1]} on prefill and {differ[2]} on decode"
    text = f"{without} gives no layer ids, and {why}"
    return Problem("position", "prefill" if without.startswith("prefill") else "decode", kind, text)


def _unpaired(reason: Reason, side: Role, at: Located, layers: int) -> Problem:
    other = "decode" if side == "prefill" else "prefill"
    name = f"layer {at.entry.layer} {at.entry.tensor}" + (f" (occurrence {at.n})" if at.n else "")
    text = f"{name} of {side} stage {at.place.pp} has no counterpart on {other}"
    return Problem(reason, side, at.kind, text, at, draft=is_draft(at.entry.layer, layers))


def _listed(ids: list[int], most: int = 6) -> str:
    shown = ", ".join(str(i) for i in ids[:most])
    return f"layer{'s' if len(ids) > 1 else ''} {shown}" + (f" and {len(ids) - most} more" if len(ids) > most else "")
