"""Names for the buffers that SGLang registers: by the tensors that its pools hold, as `oracle_dump` writes them."""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

#: KVArgs that `tests/oracle` looks at; lists of every buffer are run-length coded as [value, times].
KEPT = ("kv_layer_ids", "state_types", "state_layer_ids", "mla_compression_ratios")
CODED = ("state_item_lens", "state_dim_per_tensor", "state_slice_outer_counts", "state_conv_shard_groups")


def kvargs(args: Any) -> dict[str, Any]:
    """What `tests/oracle` looks at beside the buffers."""
    kept = {name: _plain(getattr(args, name)) for name in KEPT}
    coded = {
        name: [[[value, len(list(same))] for value, same in groupby(_plain(one))] for one in getattr(args, name)]
        for name in CODED
    }
    return kept | coded


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return getattr(value, "value", value)


def runs(args: Any, pool: Any, draft: Any, requests: Any) -> Iterator[dict[str, Any]]:
    """Registered buffers in order; those of one name and length that follow each other are one line.

    A buffer is named by the tensor that it lies in. Its layer is the engine's own id, where it gives one.
    """
    held: dict[int, Held] = {}
    for prefix, root in (("", pool), ("draft.", draft), ("requests.", requests)):
        _name_tensors(root, "", prefix, held, set())
    layers = _own_layers(pool)
    components = [("kv", args.kv_data_ptrs, args.kv_item_lens, args.kv_layer_ids)]
    states = zip(args.state_types, args.state_data_ptrs, args.state_item_lens, args.state_layer_ids, strict=True)
    components += [(kind.value, ptrs, lens, ids) for kind, ptrs, lens, ids in states]
    for kind, ptrs, lens, ids in components:
        rows = []
        for place, (ptr, length) in enumerate(zip(ptrs, lens, strict=True)):
            found = held.get(ptr) or next(one for one in held.values() if one.start <= ptr < one.end)
            layer = ids[place] if ids else layers.get((found.name, found.place), found.place)
            rows.append((found.name, found.dtype, length, layer))
        for (name, dtype, length), same in groupby(rows, lambda row: row[:3]):
            said = {"component": kind, "name": name, "dtype": dtype, "item_len": length}
            yield said | {"layers": [row[3] for row in same]}


class Held(NamedTuple):
    """A tensor that a pool holds: its addresses, the attribute that holds it, and its place in a list."""

    start: int
    end: int
    name: str
    place: int | None
    dtype: str


def _own_layers(pool: Any) -> dict[tuple[str, int], int]:
    """Where the places of a pool's lists are no layers: the pool's own map of them (DeepSeek-V4)."""
    found = {}
    for layer, item in enumerate(getattr(pool, "layer_mapping", ())):
        if item is None:
            continue
        ratio, place, _ = item
        found["swa_kv_pool.kv_buffer", pool._swa_local_layer_id(layer)] = layer
        if ratio:
            found[f"kv_pools.{ratio}.kv_buffer", place] = layer
            found[f"index_pools.{ratio}.index_k_with_scale_buffer", place] = layer
    return found


def _name_tensors(value: Any, path: str, prefix: str, held: dict[int, Held], seen: set[int]) -> None:
    """Every tensor under `value`, by its address."""
    import torch

    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        if value.numel():
            place = re.search(r"\[(\d+)\]", path)
            name = prefix + (path.replace(place[0], "") if place else path)
            start = value.data_ptr()
            found = Held(start, start + value.nbytes, name, int(place[1]) if place else None, str(value.dtype)[6:])
            held.setdefault(start, found)
    elif isinstance(value, dict):
        for key, one in value.items():
            _name_tensors(one, f"{path}.{key}", prefix, held, seen)
    elif isinstance(value, list | tuple):
        for place, one in enumerate(value):
            _name_tensors(one, f"{path}[{place}]", prefix, held, seen)
    elif hasattr(value, "__dict__") and type(value).__module__.startswith("sglang"):
        for key, one in vars(value).items():
            _name_tensors(one, f"{path}.{key}" if path else key, prefix, held, seen)
