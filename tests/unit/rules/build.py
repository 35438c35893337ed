"""Small layouts for tests: a healthy pair, and ways to spoil it."""

from typing import Any

import msgspec

from pdctl_transfer.layout.algebra import divides, item_len
from pdctl_transfer.layout.manifest import (
    NGRAM_LAYER,
    Component,
    Engine,
    Entry,
    Group,
    Manifest,
    Model,
    Parallel,
    Sharding,
    Stage,
    Transfer,
)
from pdctl_transfer.rules import Finding, Outcome, Pair, Skipped, judge

VERSIONS = {"sglang": "0.5.23", "vllm": "0.32.0"}
PAGE = 64
RATIO = 16


def entry(
    layer: int | None,
    tensor: str,
    tp: int,
    *groups: tuple[int, int],
    sharding: Sharding = "split",
    outer: int = 1,
    inner: int = 2,
    **more: Any,
) -> Entry:
    """One entry whose item length follows from its shape (0 where the split does not divide)."""
    made = Entry(layer, tensor, sharding, outer, tuple(Group(*group) for group in groups), inner, 0, **more)
    whole = sharding == "replicated" or all(divides(heads, tp) for heads, _ in groups)
    return msgspec.structs.replace(made, item_len=item_len(made, tp) if whole else 0)


def kv(tp: int, layers: range, *, heads: int = 8, page: int = PAGE, inner: int = 256, **more: Any) -> Component:
    """GQA K and V of some layers."""
    entries = (entry(layer, name, tp, (heads, 1), outer=page, inner=inner, **more) for name in "kv" for layer in layers)
    return Component("kv", "page", tuple(entries))


def mla(layers: range, *, page: int = PAGE, groups: int = 1) -> Component:
    """MLA latents, in so many buffer groups."""
    latents = [entry(n, "latent", 1, (1, 1), sharding="replicated", outer=page, inner=1152) for n in layers]
    return Component("kv", "page", tuple(latents * groups))


def mamba(
    tp: int, layers: range, *, flat: bool = False, groups: int = 8, ple: bool = False, ngram: bool = False
) -> Component:
    """Conv and temporal state; on demand PLE short-conv state and the n-gram context."""
    more = {"engine_slices": "flat"} if flat else {}
    found = [entry(n, "conv", tp, (32, 4), (groups, 16), (groups, 16), inner=6, **more) for n in layers]
    found += [entry(n, "temporal", tp, (32, 1), inner=1024) for n in layers]
    if ple:
        found += [entry(n, "ple_short_conv", tp, (1, 64), sharding="replicated") for n in layers]
    if ngram:
        found.append(entry(NGRAM_LAYER, "ple_ngram", tp, (1, 2), sharding="replicated", inner=8))
    return Component("mamba", "slot", tuple(found))


def qsa(tp: int, layers: range, *, page: int = PAGE, ratio: int = RATIO) -> tuple[Component, Component]:
    """The pending ring and the compressed keys of sparse attention."""
    pending = (entry(n, "pending_k", tp, (1, 1), sharding="replicated", outer=ratio, inner=256) for n in layers)
    rows = max(page // ratio, 1)
    compressed = (entry(n, "compressed_k", tp, (1, 1), sharding="replicated", outer=rows, inner=256) for n in layers)
    return Component("qsa_pending", "row", tuple(pending)), Component("qsa_compressed", "page", tuple(compressed))


def state(kind: str, tp: int, layers: range, **more: Any) -> Component:
    """A replicated paged state of any kind."""
    entries = (entry(n, "state", tp, (1, 1), sharding="replicated", outer=PAGE, **more) for n in layers)
    return Component(kind, "page", tuple(entries))


def manifest(role: str, tp: int = 1, stages: tuple[Stage, ...] | None = None, **changes: Any) -> Manifest:
    """Dense, four layers, on SGLang over mooncake; top-level fields by keyword, `engine` and `backend` by name."""
    name = changes.pop("engine", "sglang")
    engine = Engine(name, changes.pop("version", VERSIONS.get(name, "0.1.0")))
    transfer = Transfer(changes.pop("backend", "mooncake"), changes.pop("transfer_version", "0.3.13.post1"))
    parts = changes.pop("parts", (kv(tp, range(4)),))
    stages = stages or (Stage(0, (0, 4), parts),)
    sizes = {"pp": len(stages), **changes.pop("parallel", {})}
    fields: dict[str, Any] = {
        "origin": "file",
        "engine": engine,
        "model": Model("m", "fam", "sha256:00"),
        "transfer": transfer,
        "parallel": Parallel(tp, **sizes),
        "page_size": PAGE,
        "kv_cache_dtype": "bfloat16",
        "kv_layout": "nhd",
        "speculative": None,
        "stages": stages,
    }
    return Manifest(role=role, **(fields | changes))  # type: ignore[arg-type]


def pair(prefill: Manifest | None = None, decode: Manifest | None = None, backend: str | None = None) -> Pair:
    """A pair; a side not given is the healthy one."""
    return Pair.of(prefill or manifest("prefill"), decode or manifest("decode"), backend)


def both(tp: tuple[int, int] = (1, 1), backend: str | None = None, **changes: Any) -> Pair:
    """A pair of sides made the same way at two attention TPs; `parts` is a function of the TP."""
    parts = changes.pop("parts", lambda tp: (kv(tp, range(4)),))
    sides = (
        manifest(role, size, parts=parts(size), **changes) for role, size in zip(("prefill", "decode"), tp, strict=True)
    )
    return Pair.of(*sides, backend)


def outcomes(judged: Pair) -> list[Outcome]:
    """All that the rules say."""
    return list(judge(judged))


def found(judged: Pair) -> list[Finding]:
    """All findings, in the order of the rules."""
    return [outcome for outcome in judge(judged) if isinstance(outcome, Finding)]


def findings(judged: Pair) -> dict[str, Finding]:
    """Findings by code; no code may come twice, or one culprit was reported twice."""
    by_code = {finding.code: finding for finding in found(judged)}
    assert len(by_code) == len(found(judged)), found(judged)
    return by_code


def skips(judged: Pair) -> dict[str, Skipped]:
    """Skipped rules by name."""
    return {outcome.rule: outcome for outcome in judge(judged) if isinstance(outcome, Skipped)}
