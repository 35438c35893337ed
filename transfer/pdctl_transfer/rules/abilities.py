"""What each backend can reshape across unequal attention TP, by kind of state: data, read in SGLang 0.5.23.

MLA's KV is replicated, so any ratio that divides works, and so does other replicated state of such a model. Ascend
derives from mooncake; unequal TP is not established there. vLLM 0.32.0 was run with unequal TP over NIXL only; upstream
tests dense models there, and sliding windows whose layers have the heads of the others (gpt-oss, Gemma-3).
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final, Literal

from msgspec import Struct

from pdctl_transfer.layout.manifest import Sharding

#: `nhd, one stage`: pages in NHD order and one prefill stage. `dims`: only where both sides publish their dimensions.
#: `own heads`: not where prefill's TP is above decode's and above the KV heads (vLLM 0.32.0 nixl/base_worker.py:2449).
#: `own heads, as kv`: the same, and established only where a head count is that of the `kv` beside it.
Ability = Literal["yes", "refused", "not established", "nhd, one stage", "dims", "own heads", "own heads, as kv"]

BACKENDS: Final = ("mooncake", "nixl", "mori")

#: Backends by the name that engines take.
KNOWN_BACKENDS: Final = (*BACKENDS, "ascend", "memory")


class Row(Struct, frozen=True):
    """One kind of state (a pattern), one sharding or any (None), and what each of `BACKENDS` does."""

    kind: str
    sharding: Sharding | None
    abilities: tuple[Ability, Ability, Ability]


SGLANG: Final = (
    Row("kv", None, ("yes", "yes", "yes")),
    Row("mamba", "split", ("yes", "yes", "dims")),
    Row("mamba", "replicated", ("yes", "refused", "refused")),
    Row("qsa_pending", None, ("yes", "refused", "refused")),
    Row("qsa_compressed", None, ("yes", "refused", "refused")),
    Row("swa", None, ("nhd, one stage", "nhd, one stage", "refused")),
    Row("minimax_*", None, ("refused", "refused", "refused")),
    Row("block_scale*", None, ("refused", "refused", "not established")),
    Row("swa_ring", None, ("refused", "refused", "not established")),
    Row("request_row", None, ("refused", "refused", "not established")),
)

#: Replicated kinds that an MLA model's send path treats as any other model's.
UNLIKE_MLA: Final = frozenset({"mamba", "minimax_index_k", "minimax_dense_kv"})

#: vllm-ascend 0.23.0: sizes are its connectors' own refusals (`ascend_refusals`).
ASCEND: Final[Mapping[tuple[str, str], Ability]] = {("kv", "mooncake"): "yes", ("mamba", "mooncake"): "yes"}
#: vLLM, by kind and backend; nothing else is established.
#: MiniMax's index is one head, a region that each rank reads whole (0.32.0 nixl/base_worker.py:369 and 2584).
VLLM: Final[Mapping[tuple[str, str], Ability]] = {
    ("kv", "nixl"): "own heads",
    ("swa", "nixl"): "own heads, as kv",
    ("minimax_index_k", "nixl"): "yes",
}


def ability(engine: str, backend: str, kind: str, sharding: Sharding, mla: bool) -> Ability:
    """Whether `engine` over `backend` reshapes this state between unequal TPs. `mla`: the KV is replicated."""
    if engine == "reference" or (mla and sharding == "replicated" and kind not in UNLIKE_MLA):
        return "yes"
    if engine in ("vllm", "vllm-ascend"):
        return (VLLM if engine == "vllm" else ASCEND).get((kind, backend), "not established")
    if engine != "sglang" or backend not in BACKENDS:
        return "not established"
    for row in SGLANG:
        if fnmatchcase(kind, row.kind) and row.sharding in (None, sharding):
            return row.abilities[BACKENDS.index(backend)]
    return "not established"
