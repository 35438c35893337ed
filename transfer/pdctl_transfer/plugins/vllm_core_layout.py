"""A worker's caches as the transfer core sees them: a manifest with a kind for each block table, and their memory.

The entries are those of the exported layout (`vllm_layout`). What is added: a group with a block table of its own is a
component of its own; a block that the attention's kernels take as several is cut as they lie; blocks stand at the
stride that the tensors have, since layers share pages that are padded to one length.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from pdctl_transfer.errors import TransferError
from pdctl_transfer.layout.manifest import Component, Entry, IndexSpace, Manifest, Transfer
from pdctl_transfer.plugins.judge import refused
from pdctl_transfer.plugins.vllm_core_ids import Kind, spec_of
from pdctl_transfer.plugins.vllm_layout import Side, entries_of, layer_of
from pdctl_transfer.region import CPU, Region
from pdctl_transfer.rules import Finding, Pair, judge

SPACES: Final[Mapping[str, IndexSpace]] = {"kv": "page", "swa": "window_page", "mamba": "slot"}
_HND: Final = "hnd"
ENGINES_OWN: Final = frozenset({"PD1005", "PD1006", "PD1014", "PD1016", "PD1036"})
"""Findings about what the engine's own connectors do, refuse and compare: none of it is asked of the core."""


class Held(NamedTuple):
    """What one rank holds: the manifest of its stage, its regions in the entries' order, and each one's tensor."""

    manifest: Manifest
    regions: tuple[Region, ...]
    tensors: tuple[Any, ...]


def held(
    exported: Manifest,
    side: Side,
    kinds: Sequence[Kind],
    groups: Sequence[Any],
    caches: Mapping[str, Any],
    num_blocks: int,
    fabric: Transfer,
) -> Held:
    """From the exported layout and the tensors that the engine registers, one a layer.

    Each data-parallel rank of vLLM is an engine of its own with a registry of its own, so the core knows of none.
    Raises TransferError PD3147 where a tensor is not what its spec says.
    """
    components, regions, tensors = [], [], []
    for kind, group in zip(kinds, groups, strict=True):
        placed = []
        for name in group.layer_names:
            spec, tensor = spec_of(group, name), caches[name]
            placed += (
                list(_recurrent(name, spec, tensor, side, num_blocks))
                if kind.recurrent
                else [_attention(name, spec, tensor, side, num_blocks)]
            )
        placed.sort(key=lambda one: (one[0].tensor == "temporal", one[0].layer or 0))
        components.append(
            Component(kind.name, SPACES[kind.name.partition("/")[0]], tuple(entry for entry, _, _ in placed))
        )
        regions += [region for _, region, _ in placed]
        tensors += [tensor for _, _, tensor in placed]
    stage = replace(exported.stages[0], components=tuple(components))
    parallel = replace(exported.parallel, dp=1)
    manifest = replace(exported, transfer=fabric, parallel=parallel, stages=(stage,))
    return Held(manifest, tuple(regions), tuple(tensors))


def check(prefill: Manifest, decode: Manifest) -> list[Finding]:
    """What is wrong with a pair whose state the core moves."""
    found = (outcome for outcome in judge(Pair.of(prefill, decode)) if isinstance(outcome, Finding))
    return [finding for finding in found if refused(finding) and finding.code not in ENGINES_OWN]


def storages(tensors: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """Base and bytes of the memory behind these tensors, each once."""
    seen = set()
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            yield int(storage.data_ptr()), int(storage.nbytes())


def _attention(name: str, spec: Any, tensor: Any, side: Side, num_blocks: int) -> tuple[Entry, Region, Any]:
    """One entry; `tensor` has shape [blocks of the kernels, heads, tokens, K and V]."""
    ratio = _ratio(name, tensor, num_blocks)
    (entry,) = entries_of(layer_of(name), spec, side)
    step = int(tensor.stride(0)) * int(tensor.element_size())
    if ratio > 1 and step * ratio != entry.item_len:
        raise _other(name, f"{ratio} blocks of the kernels, {step} bytes apart, are no block of {entry.item_len}")
    if ratio == 1 and step < entry.item_len:
        raise _other(name, f"blocks of {entry.item_len} bytes, {step} bytes apart")
    if side.kv_layout == _HND and entry.sharding == "split":
        entry = replace(entry, outer=ratio, inner_bytes=entry.inner_bytes // ratio)
    if not _packed(tensor[0], side.kv_layout == _HND):
        raise _other(name, f"strides {tuple(tensor.stride())} of {tuple(tensor.shape)} are not those of its layout")
    return entry, _region(tensor, 0, num_blocks, entry.item_len, step * ratio), tensor


def _recurrent(name: str, spec: Any, tensor: Any, side: Side, num_blocks: int) -> Iterator[tuple[Entry, Region, Any]]:
    """The window and the state, one after the other in a page."""
    entries = list(entries_of(layer_of(name), spec, side))
    if len(spec.shapes) != len(entries):
        raise _other(name, f"a recurrent state of {len(spec.shapes)} parts")
    step = int(spec.page_size_bytes)
    if tensor.ndim > 1:
        step = int(tensor.stride(0)) * int(tensor.element_size())
    at = 0
    for entry in entries:
        if at + entry.item_len > step:
            raise _other(name, f"{at + entry.item_len} bytes of state in a page of {step}")
        yield entry, _region(tensor, at, num_blocks, entry.item_len, step), tensor
        at += entry.item_len


def _region(tensor: Any, at: int, items: int, item_len: int, step: int) -> Region:
    where = CPU if tensor.device.type == CPU else str(tensor.device)
    return Region(int(tensor.data_ptr()) + at, items, item_len, where, step if step != item_len else 0)


def _ratio(name: str, tensor: Any, num_blocks: int) -> int:
    """How many blocks of the kernels are one of the scheduler's."""
    if tensor.ndim != 4 or not num_blocks or tensor.shape[0] % num_blocks:
        raise _other(name, f"shape {tuple(tensor.shape)} for {num_blocks} blocks")
    return int(tensor.shape[0]) // num_blocks


def _packed(block: Any, heads_first: bool) -> bool:
    """Whether a block [heads, tokens, content] has no gaps, in the order that the layout says."""
    heads, tokens, content = (int(size) for size in block.shape)
    expected = (tokens * content, content) if heads_first else (content, heads * content)
    strides = [int(stride) for stride in block.stride()]
    seen = [(size, stride) for size, stride in zip((heads, tokens), strides, strict=False) if size > 1]
    wanted = [(size, stride) for size, stride in zip((heads, tokens), expected, strict=True) if size > 1]
    return seen == wanted and strides[2] == 1


def _other(name: str, what: str) -> TransferError:
    return TransferError(f"{re.sub(r'[^ -~]', '?', name)}: {what}", code="PD3147")
