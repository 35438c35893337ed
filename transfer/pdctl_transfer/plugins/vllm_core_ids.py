"""Which blocks of a request go by the transfer core: one list of ids for each of vLLM's cache groups.

Both sides come to the same list from the number of tokens alone, so nothing of it is exchanged. A group with a block
table of its own is a kind of its own to the core; its ids begin at the same position on both sides, and what decode's
prefix cache holds is left out at the beginning, as `skip`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from pdctl_transfer.errors import TransferError

SPECS: Final = frozenset({"FullAttentionSpec", "MLAAttentionSpec", "SlidingWindowSpec", "MambaSpec"})
"""Cache specs whose blocks are understood, by their very class: a subclass may lay them out in another way."""
QUANTISED: Final = frozenset({"NONE", "FP8_PER_TENSOR"})
"""Quantisations that keep nothing but the values in a block."""


class Kind(Struct, frozen=True):
    """A cache group as the core's kind `name`. window: in tokens, 0 where there is none; scratch: trailing slots of a
    recurrent group that drafts use."""

    name: str
    block_size: int
    window: int = 0
    recurrent: bool = False
    scratch: int = 0

    def first(self, tokens: int) -> int:
        """The first block that the token after these looks back to."""
        return max(0, tokens - self.window + 1) // self.block_size if self.window else 0

    def choose(self, blocks: Sequence[int], tokens: int, held: int = 0) -> tuple[list[int], int]:
        """The ids to move for a prompt of `tokens`, of which the first `held` are here already; and how many the list
        leaves out for that at its beginning. Raises TransferError PD4020 where the request has too few blocks."""
        if self.recurrent:
            kept = blocks[: len(blocks) - min(self.scratch, max(0, len(blocks) - 1))]
            return list(kept[-1:]), 0
        first, stop = self.first(tokens), -(-tokens // self.block_size)
        if len(blocks) < stop:
            raise TransferError(f"{self.name}: {len(blocks)} blocks hold no {tokens} tokens", code="PD4020")
        begin = min(stop, max(first, held // self.block_size))
        return list(blocks[begin:stop]), begin - first


def kinds(groups: Iterable[Any]) -> tuple[Kind, ...]:
    """The kinds of an engine's transferable groups, in their order. Raises TransferError PD3147 for one that the core
    does not know how to cut."""
    found: list[Kind] = []
    for group in groups:
        specs = [spec_of(group, name) for name in group.layer_names] or [group.kv_cache_spec]
        for spec in specs:
            if reason := unknown(spec):
                raise TransferError(f"the caches of {', '.join(group.layer_names[:2])}: {reason}", code="PD3147")
        found.append(_kind(specs[0], group.kv_cache_spec.block_size, found))
    return tuple(found)


def spec_of(group: Any, name: str) -> Any:
    """A layer's spec: the group's, or its own within a group of several."""
    return getattr(group.kv_cache_spec, "kv_cache_specs", {}).get(name, group.kv_cache_spec)


def unknown(spec: Any) -> str:
    """Why blocks of this spec are not understood; empty where they are."""
    name = type(spec).__name__
    if name not in SPECS:
        return f"{name} is none that the transfer core cuts"
    quantised = getattr(getattr(spec, "kv_quant_mode", None), "name", "NONE")
    if quantised not in QUANTISED:
        return f"{quantised} keeps more than values in a block"
    if getattr(spec, "num_head_slots", None) is not None or getattr(spec, "state_content_bytes", None) is not None:
        return "its heads are packed"
    if name != "MambaSpec" and getattr(spec, "tokens_per_state", 1) != 1:
        return "a state of it stands for several tokens"
    if getattr(spec, "tp_replicated", False):
        return "a recurrent state that every rank holds whole"
    return ""


def chosen(
    kinds: Sequence[Kind], groups: Sequence[Sequence[int]], tokens: int, held: int = 0
) -> tuple[Mapping[str, list[int]], Mapping[str, int]]:
    """Ids and skips of all kinds, from the block ids of all groups. Raises TransferError PD4020."""
    ids, skip = {}, {}
    for kind, blocks in zip(kinds, groups, strict=True):
        ids[kind.name], left_out = kind.choose(blocks, tokens, held)
        if left_out:
            skip[kind.name] = left_out
    return ids, skip


def _kind(spec: Any, block_size: int, before: Sequence[Kind]) -> Kind:
    window = int(getattr(spec, "sliding_window", None) or 0)
    recurrent = type(spec).__name__ == "MambaSpec"
    base = "mamba" if recurrent else "swa" if window else "kv"
    count = sum(kind.name.partition("/")[0] == base for kind in before)
    name = f"{base}/{count}" if count else base
    return Kind(name, int(block_size), window, recurrent, int(getattr(spec, "num_speculative_blocks", 0) or 0))
