"""PD1061: what the transfer core does not carry inside an engine, where it is asked to.

Context parallelism puts other tokens on each rank, which no layout says. `dsa_tail` is addressed by parts of a row, not
by items. Inside SGLang the core rides on the engine's own Mooncake. It hooks the release that it
was made for.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.rules.outcome import Evidence, Outcome
from pdctl_transfer.rules.pair import Pair, components, listed, setting
from pdctl_transfer.rules.releases import SHOWN, release

#: Kinds of state whose indices are ids of items, as SGLang registers them.
KINDS: Final = frozenset(
    {
        "kv",
        "mamba",
        "swa",
        "dsa",
        "qsa_pending",
        "qsa_compressed",
        "minimax_index_k",
        "minimax_dense_kv",
        "swa_ring",
        "c128_state",
        "request_row",
        "block_scale",
        "block_scale_swa",
    }
)
#: Kinds that the core carries, by engine.
CARRIED: Final[Mapping[str, frozenset[str]]] = {"sglang": KINDS, "vllm": frozenset({"kv", "mamba", "swa"})}
#: Types whose blocks in vLLM hold more than values, or another number of them.
PACKED: Final = frozenset({"nvfp4", "fp8_ds_mla"})
#: The transfer backends that it can ride on inside an engine.
RIDES: Final[Mapping[str, frozenset[str]]] = {"sglang": frozenset({"mooncake"})}
#: The release of each engine whose functions it hooks, or whose connector interface it fills.
READ: Final[Mapping[str, str]] = {"sglang": "0.5.23", "vllm": "0.32.0"}

CONTEXTS: Final = {
    "attn_cp": "context parallelism",
    "dcp": "decode context parallelism",
    "pcp": "prefill context parallelism",
}


def check_core_limits(pair: Pair) -> Iterator[Outcome]:
    """One finding for all reasons; nothing for the engine's own way, and for the reference engine."""
    if not pair.by_core or pair.engines == {"reference"}:
        return
    found = list(_limits(pair))
    if found:
        evidence = dict.fromkeys(one for _, evidence in found for one in evidence)
        yield pair.finding("PD1061", evidence, what="; ".join(what for what, _ in found))
    else:
        yield pair.held("core_limits", "the transfer core carries every kind of state of this pair")


def _limits(pair: Pair) -> Iterator[tuple[str, tuple[Evidence, ...]]]:
    """What it cannot, and where that is said."""
    engine = pair.prefill.engine.name
    if engine not in READ:
        yield f"there is no core inside {engine}", pair.evidence("engine")
        return
    for role, side in pair.sides:
        version = side.manifest.engine.version
        if release(version) not in (None, release(READ[engine])):
            what = f"{role} runs {SHOWN[engine]} {version}: the core was made for {READ[engine]}"
            yield what, (side.evidence("engine_version"),)
    if pair.backend not in RIDES.get(engine, {pair.backend}):
        rides = listed(sorted(RIDES[engine]))
        yield f"inside {SHOWN[engine]} it rides on {rides}, not on {pair.backend}", pair.backend_evidence()
    for name, what in CONTEXTS.items():
        sizes = [_size(side.manifest, name) for _, side in pair.sides]
        if max(sizes) > 1:
            yield f"{what} {sizes[0]} → {sizes[1]}", pair.evidence(name)
    # vLLM's block tables of one kind are told apart by a number: mamba/1
    held = {part.kind.partition("/")[0] for part in components(pair.prefill, pair.decode) if part.entries}
    kinds = sorted(held - CARRIED[engine])
    if kinds:
        yield f"{listed(kinds)}: state that it does not know by items", (pair.prefill_side.said(listed(kinds)),)
    if engine == "vllm":
        yield from _vllm(pair)
    elif pair.decode.parallel.pp > 1:
        yield f"{pair.decode.parallel.pp} pipeline stages on decode", (pair.decode_side.evidence("pp"),)


def _vllm(pair: Pair) -> Iterator[tuple[str, tuple[Evidence, ...]]]:
    """What goes by NIXL's connector, which stands beside ours."""
    stages = [side.manifest.parallel.pp for _, side in pair.sides]
    if max(stages) > 1:
        yield f"pipeline parallelism {stages[0]} → {stages[1]}", pair.evidence("pp")
    packed = sorted(PACKED & {side.manifest.kv_cache_dtype for _, side in pair.sides})
    if packed:
        yield f"KV of type {listed(packed)}", pair.evidence("kv_cache_dtype")


def _size(manifest: Manifest, name: str) -> int:
    value = manifest.parallel.attn_cp if name == "attn_cp" else setting(manifest, name)
    return value if isinstance(value, int) else 1
