"""PD1032: a kind of state must be addressed by one kind of index on both sides.

Ids are local to each side, but their lists are paired one by one: a page list and a slot list have no equal length.
"""

from collections.abc import Iterator

from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair, components


def check_index_spaces(pair: Pair) -> Iterator[Outcome]:
    """One finding a kind that both sides hold."""
    prefill, decode = _spaces(pair.prefill), _spaces(pair.decode)
    for kind in prefill:
        if kind in decode and prefill[kind] != decode[kind]:
            evidence = [side.said(f"{kind}: index_space {_spaces(side.manifest)[kind]}") for _, side in pair.sides]
            yield pair.finding("PD1032", evidence, kind=kind, prefill=prefill[kind], decode=decode[kind])


def _spaces(manifest: Manifest) -> dict[str, str]:
    return {part.kind: part.index_space for part in components(manifest) if part.entries}
