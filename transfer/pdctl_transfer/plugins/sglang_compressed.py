"""Which layer and tensor each of DeepSeek-V4's buffers in SGLang is: they come without ids, grouped by ratio.

The order is the pool's own (`get_contiguous_buf_infos`, `get_state_buf_infos`), as its transfer cuts it for pipeline
stages (`_mla_slice_ptrs_for_pp`).
"""

from collections.abc import Iterable, Sequence

Named = list[tuple[int | None, str]]


def named(
    kind: str, count: int, ratios: Sequence[int], layers: tuple[int, int], first: int, *, again: bool
) -> Named | None:
    """(layer, tensor) of each of `count` buffers of a component; None where the numbers say it is something else.

    `ratios`: one a layer of the model; `layers`: the stage's; `first`: the first id of a draft's layers, whose windows
    are a component `again`.
    """
    stage = range(*layers)
    small, large = ([layer for layer in stage if ratios[layer] == ratio] for ratio in (4, 128))
    found = {
        "kv": _of(("latent", small), ("index_k", small), ("latent", large)),
        "swa": _of(("latent", stage), ("state", small), ("index_state", small)),
        "c128_state": _of(("state", large)),
        "request_row": _of(("valid_from", [first])),
    }.get(kind)
    if again:
        found = _of(("latent", range(first, first + count))) if kind == "swa" else None
    return found if found is not None and len(found) == count else None


def _of(*groups: tuple[str, Iterable[int]]) -> Named:
    return [(layer, tensor) for tensor, layers in groups for layer in layers]
