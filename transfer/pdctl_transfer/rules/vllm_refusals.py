"""What vLLM and its connectors refuse: read in 0.32.0, and where it is another in the releases from 0.24 to 0.33.

NIXL's connectors know pipeline stages since 0.26, context parallelism since 0.29. What an older one does with them is
not established.
"""

from typing import Final

from pdctl_transfer.layout.algebra import entries_of
from pdctl_transfer.rules.pair import components, setting
from pdctl_transfer.rules.refusal import BOTH, DECODE, Refusal, Sides, row

NIXL: Final = frozenset({"nixl"})
MOONCAKE: Final = frozenset({"mooncake"})
MORI: Final = frozenset({"mori"})
ANY: Final[frozenset[str]] = frozenset()


def _pull_pp_hybrid(at: Sides, role: str) -> str | None:
    pp = at.size(role, "pp")
    if pp == 1 or at.recurrent or not at.apart or at.connector(role) == "push":
        return None
    return f"PP {pp} on {role} with hybrid KV layouts: NIXL's pull connector raises NotImplementedError at its start"


def _pp_hybrid(at: Sides, role: str) -> str | None:
    pp = at.size(role, "pp")
    if pp == 1 or at.recurrent or not at.apart:
        return None
    return f"PP {pp} on {role} with hybrid KV layouts: before 0.31 NIXL's connectors raise NotImplementedError"


def _push_stages_widen(at: Sides, _: str) -> str | None:
    (prefill, decode), pp = at.pair.tp, at.size("prefill", "pp")
    if pp == 1 or decode <= prefill or at.mla or not at.apart or at.connector("prefill") != "push":
        return None
    return (
        f"PP {pp} with hybrid KV layouts pushed from TP {prefill} to {decode}: NixlPushConnector takes no wider decode"
    )


def _state_of_one_part(at: Sides, _: str) -> str | None:
    parts = {entry.tensor for _, entry in entries_of(at.pair.prefill) if entry.tensor in ("conv", "temporal")}
    if len(parts) != 1:
        return None
    what = "a window and no recurrence (LFM2)" if parts == {"conv"} else "a recurrence and no window (Ling-2.5)"
    return f"a state with {what}: the connector raises NotImplementedError at its start"


def _nvfp4_cut(at: Sides, _: str) -> str | None:
    (prefill, decode), words = at.pair.tp, {side.manifest.kv_cache_dtype for _, side in at.pair.sides}
    if prefill == decode or at.mla or not any("nvfp4" in word for word in words):
        return None
    return f"NVFP4 KV between TP {prefill} and {decode}: a page holds all heads' data before all their scales"


def _uneven_regions(at: Sides, role: str) -> str | None:
    """A stage's regions are counted by layer; a dense layer of MiniMax-M3 has one, any other two."""
    if at.size(role, "pp") == 1 or at.recurrent or at.apart:
        return None
    manifest = at.pair.prefill if role == "prefill" else at.pair.decode
    for stage in manifest.stages:
        layers, regions = stage.layers[1] - stage.layers[0], sum(len(part.entries) for part in stage.components)
        if layers and regions % layers:
            return (
                f"stage {stage.pp_rank} on {role} has {regions} regions for {layers} layers: NIXL's connectors assert "
                "as many for each layer at their start"
            )
    return None


def _csa_boundary(at: Sides, _: str) -> str | None:
    (prefill, decode), heads = at.pair.tp, at.heads
    compressed = any(part.kind == "qsa_pending" for part in components(at.pair.prefill, at.pair.decode))
    if not compressed or not heads or (prefill < heads) == (decode < heads):
        return None
    return (
        f"TP {prefill} → {decode} beside compressed sparse attention: NIXL wants both sides below the {heads} "
        "KV heads, or none"
    )


def _embeddings_pp(at: Sides, role: str) -> str | None:
    pp = at.size(role, "pp")
    manifest = at.pair.prefill if role == "prefill" else at.pair.decode
    tensors = {entry.tensor for part in components(manifest) for entry in part.entries}
    if pp == 1 or "ple_short_conv" not in tensors:
        return None
    return f"PP {pp} on {role} with n-gram embeddings: vLLM raises NotImplementedError at its start"


def _pp_unknown(at: Sides, role: str) -> str | None:
    pp = at.size(role, "pp")
    return f"PP {pp} on {role}: NIXL's connectors know no stages before 0.26; not established" if pp > 1 else None


def _pp_recurrent(at: Sides, role: str) -> str | None:
    pp = at.size(role, "pp")
    if pp == 1 or not at.recurrent:
        return None
    return f"PP {pp} on {role} with a recurrent state: NIXL's connectors raise NotImplementedError at their start"


def _pp_consumer(at: Sides, role: str) -> str | None:
    pp = at.size(role, "pp")
    if pp == 1 or at.recurrent or (at.apart and at.connector(role) == "pull"):
        return None
    if at.consumes(role):
        return f"PP {pp} on decode: a NIXL kv_consumer raises NotImplementedError at its start"
    return f"PP {pp} on decode: NIXL counts completions by consumer rank, and kv_both does not stop it"


def _pull_from_stages(at: Sides, role: str) -> str | None:
    pp = at.size("prefill", "pp")
    if pp == 1 or at.size("decode", "pp") > 1 or at.recurrent or at.apart or at.connector("decode") == "push":
        return None
    return (
        f"PP {pp} on prefill, 1 on decode: NIXL's pull connector wants as many regions of each stage as it has itself; "
        "NixlPushConnector takes this"
    )


def _pcp_consumer(at: Sides, role: str) -> str | None:
    pcp = at.size(role, "pcp")
    if pcp == 1 or (role == "prefill" and setting(at.pair.prefill, "kv_role") != "both"):
        return None
    return f"prefill context parallelism {pcp} on {role}: NIXL's connectors take it on a kv_producer only"


def _pcp_at_all(at: Sides, role: str) -> str | None:
    pcp = at.size(role, "pcp")
    return f"prefill context parallelism {pcp} on {role}: 0.29 asserts 1 with NixlConnector" if pcp > 1 else None


def _pcp_dcp_apart(at: Sides, role: str) -> str | None:
    pcp, dcp = at.size(role, "pcp"), at.size(role, "dcp")
    if pcp == 1 or dcp == 1:
        return None
    return f"prefill and decode context parallelism {pcp} and {dcp} on {role}: NIXL takes one of them before 0.30"


def _cp_unknown(at: Sides, role: str) -> str | None:
    sizes = {name: at.size(role, name) for name in ("pcp", "dcp")}
    said = ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    return f"{said} on {role}: NIXL's connectors know neither before 0.29; not established" if said else None


def _dcp_recurrent(at: Sides, role: str) -> str | None:
    dcp = at.size(role, "dcp")
    if dcp == 1 or not at.recurrent:
        return None
    return f"decode context parallelism {dcp} on {role} with a recurrent state: not over NIXL before 0.30"


def _pcp_with_dcp(at: Sides, role: str) -> str | None:
    pcp, dcp, tp = at.size(role, "pcp"), at.size(role, "dcp"), at.size(role, "tp")
    if pcp == 1 or dcp == 1 or (tp == 1 and dcp == pcp):
        return None
    return f"prefill and decode context parallelism {pcp} and {dcp} at TP {tp} on {role}: NIXL takes both at TP 1 only"


def _push_dcp(at: Sides, role: str) -> str | None:
    dcp = at.size(role, "dcp")
    return (
        f"decode context parallelism {dcp} on {role}: not with push"
        if dcp > 1 and at.connector(role) == "push"
        else None
    )


def _dcp_spans(at: Sides, role: str) -> str | None:
    dcp, whole = at.size(role, "dcp"), max(at.size(role, "tp"), at.size(role, "pcp"))
    if dcp == 1 or at.connector(role) == "push" or at.size(role, "tp") % dcp:
        return None
    if not at.mla:
        return f"decode context parallelism {dcp} on {role}: over NIXL for MLA models only"
    return f"decode context parallelism {dcp} on {role}: over NIXL it is 1 or {whole}" if dcp != whole else None


def _dcp_divides_tp(at: Sides, role: str) -> str | None:
    dcp, tp, pcp = at.size(role, "dcp"), at.size(role, "tp"), at.size(role, "pcp")
    if pcp == 1:
        return f"decode context parallelism {dcp} on {role} does not divide TP {tp}" if tp % dcp else None
    if dcp in (1, pcp, tp * pcp):
        return None
    return f"decode context parallelism {dcp} on {role}: with prefill's {pcp} at TP {tp} it is 1, {pcp} or {tp * pcp}"


def _dcp_heads(at: Sides, role: str) -> str | None:
    dcp, tp = at.size(role, "dcp"), at.size(role, "tp")
    if dcp == 1 or at.mla or not at.heads or dcp * at.heads <= tp:
        return None
    return (
        f"decode context parallelism {dcp} on {role}: TP {tp} holds each of {at.heads} KV heads {tp // at.heads} times"
    )


def _dcp_pair(at: Sides, _: str) -> str | None:
    prefill, decode = at.size("prefill", "dcp"), at.size("decode", "dcp")
    if prefill == decode:
        return None
    if at.recurrent:
        return f"decode context parallelism {prefill} → {decode}: with a recurrent state NIXL needs equal sizes"
    if max(prefill, decode) % min(prefill, decode):
        return f"decode context parallelism {prefill} → {decode}: over NIXL one divides the other"
    return None


def _pcp_pair(at: Sides, _: str) -> str | None:
    for role, other in (BOTH, BOTH[::-1]):
        if at.size(role, "pcp") > 1 and at.size(role, "dcp") == 1 and at.size(other, "dcp") > 1:
            return f"replicated prefill context parallelism on {role} with a sharded KV on {other}"
    return None


def _mooncake_dcp(at: Sides, _: str) -> str | None:
    prefill, decode = at.size("prefill", "dcp"), at.size("decode", "dcp")
    if prefill == decode:
        return None
    return f"decode context parallelism {prefill} → {decode}: pages hold other tokens; Mooncake's connector knows none"


def _mooncake_dcp_equal(at: Sides, _: str) -> str | None:
    dcp = at.size("prefill", "dcp")
    if dcp == 1 or dcp != at.size("decode", "dcp"):
        return None
    return f"decode context parallelism {dcp} on both sides: not established over Mooncake, whose connector knows none"


def _mori_heads(at: Sides, _: str) -> str | None:
    prefill, decode = at.pair.tp
    if prefill == decode or at.mla or not at.heads or min(prefill, decode) >= at.heads:
        return None
    return f"attention TP {prefill} → {decode} with {at.heads} KV heads: MoRIIO cuts none anew"


READ: Final = "vLLM 0.32.0"
NO_DCP: Final = f"{READ} mooncake/mooncake_connector.py, no DCP"

ROWS: Final[tuple[Refusal, ...]] = (
    row(
        "vllm", NIXL | MORI, ("prefill",), ("backend",), _state_of_one_part, f"{READ} v1/ssm_conv_transfer_utils.py:133"
    ),
    row("vllm", NIXL, BOTH, ("pp",), _pull_pp_hybrid, f"{READ} nixl/base_worker.py:761", since="0.31.0"),
    row("vllm", NIXL, BOTH, ("pp",), _pp_hybrid, "vLLM 0.30.0 nixl/base_worker.py:642", since="0.26.0", until="0.31.0"),
    row("vllm", NIXL, BOTH, ("pp",), _pp_recurrent, f"{READ} nixl/base_worker.py:769", since="0.26.0"),
    row("vllm", NIXL, DECODE, ("pp",), _pp_consumer, f"{READ} nixl/base_worker.py:775", since="0.26.0"),
    row("vllm", NIXL, DECODE, ("pp",), _pull_from_stages, f"{READ} nixl/base_worker.py:2573", since="0.26.0"),
    row("vllm", NIXL, BOTH, ("pp",), _uneven_regions, f"{READ} nixl/base_worker.py:1716", since="0.32.0"),
    row("vllm", NIXL, DECODE, ("attn_tp",), _csa_boundary, f"{READ} nixl/base_worker.py:967", since="0.32.0"),
    row("vllm", ANY, BOTH, ("pp",), _embeddings_pp, f"{READ} model_executor/models/config.py:941", since="0.32.0"),
    row("vllm", NIXL, BOTH, ("pp",), _pp_unknown, "vLLM 0.25.0 nixl, no PP", severity="warning", until="0.26.0"),
    row("vllm", NIXL, BOTH, ("pcp",), _pcp_consumer, f"{READ} nixl/connector.py:108", since="0.29.0"),
    row("vllm", NIXL, BOTH, ("pcp",), _pcp_at_all, "vLLM 0.29.0 config/vllm.py:1151", since="0.29.0", until="0.30.0"),
    row("vllm", NIXL, BOTH, ("pcp", "dcp"), _pcp_with_dcp, f"{READ} nixl/connector.py:115", since="0.30.0"),
    row(
        "vllm",
        NIXL,
        BOTH,
        ("pcp", "dcp"),
        _pcp_dcp_apart,
        "vLLM 0.29.0 nixl/connector.py",
        since="0.29.0",
        until="0.30.0",
    ),
    row("vllm", NIXL, BOTH, ("pcp", "dcp"), _cp_unknown, "vLLM 0.28.0 nixl, no CP", severity="warning", until="0.29.0"),
    row("vllm", NIXL, BOTH, ("dcp",), _push_dcp, f"{READ} nixl/connector.py:383", since="0.29.0"),
    row("vllm", NIXL, BOTH, ("dcp",), _dcp_spans, f"{READ} config/vllm.py:1483", since="0.29.0"),
    row("vllm", ANY, BOTH, ("dcp", "attn_tp"), _dcp_divides_tp, f"{READ} config/parallel.py:593"),
    row("vllm", ANY, BOTH, ("dcp", "attn_tp"), _dcp_heads, f"{READ} config/model.py:1566"),
    row(
        "vllm", NIXL, BOTH, ("dcp",), _dcp_recurrent, "vLLM 0.29.0 config/vllm.py:1165", since="0.29.0", until="0.30.0"
    ),
    row("vllm", NIXL, DECODE, ("dcp",), _dcp_pair, f"{READ} nixl/base_worker.py:2429", since="0.29.0"),
    row("vllm", NIXL, DECODE, ("pcp", "dcp"), _pcp_pair, f"{READ} nixl/base_worker.py:938", since="0.29.0"),
    row(
        "vllm", NIXL, DECODE, ("pp", "attn_tp"), _push_stages_widen, f"{READ} nixl/base_worker.py:2207", since="0.31.0"
    ),
    row("vllm", NIXL, DECODE, ("kv_cache_dtype", "attn_tp"), _nvfp4_cut, "vLLM 0.33.0 nixl/base_worker.py:2857"),
    row("vllm", MOONCAKE, DECODE, ("dcp",), _mooncake_dcp, NO_DCP),
    row("vllm", MOONCAKE, DECODE, ("dcp",), _mooncake_dcp_equal, NO_DCP, severity="warning"),
    row("vllm", MORI, DECODE, ("attn_tp",), _mori_heads, f"{READ} moriio/moriio_connector.py:165", since="0.25.0"),
)
