"""What vllm-ascend's connectors refuse: read in 0.23.0. `V1` and hybrid pull once prefill is done, layerwise pushes."""

from typing import Final

from pdctl_transfer.rules.pair import setting
from pdctl_transfer.rules.refusal import BOTH, DECODE, Refusal, Sides, row

MOONCAKE: Final = frozenset({"mooncake"})
HYBRID: Final = "MooncakeHybridConnector"
LAYERWISE: Final = "MooncakeLayerwiseConnector"


def _connector(at: Sides) -> str:
    return str(setting(at.pair.prefill, "connector"))


def _tp_grows(at: Sides, _: str) -> str | None:
    prefill, decode = at.pair.tp
    if prefill >= decode:
        return None
    when = "at the first request" if _connector(at) == LAYERWISE else "at their start"
    return f"TP {prefill} on prefill below {decode} on decode: vllm-ascend's connectors refuse it {when}"


def _tp_divides(at: Sides, _: str) -> str | None:
    prefill, decode = at.pair.tp
    if prefill < decode or prefill % decode == 0:
        return None
    return f"TP {prefill} on prefill is no multiple of {decode} on decode"


def _recurrent_tp(at: Sides, _: str) -> str | None:
    if _connector(at) != HYBRID or not at.recurrent or not at.pair.unequal_tp:
        return None
    return f"TP {at.pair.tp[0]} → {at.pair.tp[1]} with a recurrent state: {HYBRID} takes equal sizes only"


def _decode_stages(at: Sides, role: str) -> str | None:
    pp = at.size(role, "pp")
    return f"PP {pp} on decode: it is 1" if pp > 1 and _connector(at) != LAYERWISE else None


def _stages_and_contexts(at: Sides, role: str) -> str | None:
    pp, pcp = at.size(role, "pp"), at.size(role, "pcp")
    if min(pp, pcp) == 1 or _connector(at) == LAYERWISE:
        return None
    return f"PP {pp} with prefill context parallelism {pcp} on {role}: not both"


def _hybrid_contexts(at: Sides, role: str) -> str | None:
    pcp, dcp = at.size(role, "pcp"), at.size(role, "dcp")
    if pcp * dcp == 1 or _connector(at) != HYBRID:
        return None
    return f"context parallelism {pcp * dcp} on {role}: {HYBRID} knows none"


READ: Final = "vllm-ascend 0.23.0 kv_p2p/"

ROWS: Final[tuple[Refusal, ...]] = (
    row("vllm-ascend", MOONCAKE, DECODE, ("attn_tp",), _tp_grows, f"{READ}mooncake_connector.py:1982"),
    row("vllm-ascend", MOONCAKE, DECODE, ("attn_tp",), _tp_divides, f"{READ}mooncake_connector.py:3214"),
    row("vllm-ascend", MOONCAKE, DECODE, ("attn_tp",), _recurrent_tp, f"{READ}mooncake_hybrid_connector.py:1528"),
    row("vllm-ascend", MOONCAKE, DECODE, ("pp",), _decode_stages, f"{READ}mooncake_connector.py:2085"),
    row("vllm-ascend", MOONCAKE, BOTH, ("pp", "pcp"), _stages_and_contexts, f"{READ}mooncake_connector.py:2004"),
    row("vllm-ascend", MOONCAKE, BOTH, ("pcp", "dcp"), _hybrid_contexts, f"{READ}mooncake_hybrid_connector.py:1505"),
)
