"""What SGLang refuses of context parallelism: read in 0.5.23, and where it is another in the releases from 0.5.6 on.

The flag came with 0.5.15; a disaggregated engine knows of it since 0.5.17.
"""

from typing import Final

from pdctl_transfer.rules.pair import components
from pdctl_transfer.rules.refusal import BOTH, DECODE, Refusal, Sides, row

ANY: Final[frozenset[str]] = frozenset()


def _sglang_dcp_divides(at: Sides, role: str) -> str | None:
    dcp, tp = at.size(role, "dcp"), at.size(role, "tp")
    return f"decode context parallelism {dcp} on {role} does not divide TP {tp}" if tp % dcp else None


def _sglang_dcp_dsa(at: Sides, role: str) -> str | None:
    kinds = {part.kind for part in components(at.pair.prefill, at.pair.decode) if part.entries}
    dcp = at.size(role, "dcp")
    if dcp == 1 or "dsa" not in kinds:
        return None
    return f"decode context parallelism {dcp} on {role}: with DSA not in a disaggregated engine"


def _sglang_dcp_mla(at: Sides, _: str) -> str | None:
    dcp = at.size("decode", "dcp")
    return f"decode context parallelism {dcp} needs an MLA model" if dcp > 1 and not at.mla else None


def _sglang_dcp_prefill_cp(at: Sides, _: str) -> str | None:
    dcp, cp = at.size("decode", "dcp"), at.pair.prefill.parallel.attn_cp
    return f"decode context parallelism {dcp} needs prefill CP 1, found {cp}" if dcp > 1 and cp != 1 else None


def _sglang_dcp_unequal(at: Sides, _: str) -> str | None:
    prefill, decode = at.size("prefill", "dcp"), at.size("decode", "dcp")
    if prefill in (1, decode):
        return None
    return f"decode context parallelism {prefill} on prefill, {decode} on decode: prefill's is 1 or decode's"


def _sglang_dcp_unknown(at: Sides, role: str) -> str | None:
    dcp = at.size(role, "dcp")
    if dcp == 1:
        return None
    return (
        f"decode context parallelism {dcp} on {role}: disaggregation knows none before 0.5.17, pages hold other tokens"
    )


def _sglang_dcp_backend(at: Sides, _: str) -> str | None:
    dcp = at.size("decode", "dcp")
    return f"decode context parallelism {dcp} goes over mooncake and nixl only before 0.5.22" if dcp > 1 else None


READ: Final = "SGLang 0.5.23"
CONN: Final = "disaggregation/common/conn.py"
SINCE_PD: Final = "0.5.17"

ROWS: Final[tuple[Refusal, ...]] = (
    row("sglang", ANY, BOTH, ("dcp", "attn_tp"), _sglang_dcp_divides, f"{READ} distributed/parallel_state.py:2720"),
    row("sglang", ANY, BOTH, ("dcp",), _sglang_dcp_unknown, f"SGLang 0.5.16 {CONN}, no DCP", until=SINCE_PD),
    row(
        "sglang",
        ANY,
        BOTH,
        ("dcp",),
        _sglang_dcp_dsa,
        f"{READ} arg_groups/model_overrides/deepseek_v2.py:23",
        since="0.5.22",
    ),
    row("sglang", ANY, DECODE, ("dcp",), _sglang_dcp_mla, f"{READ} {CONN}:1408", since=SINCE_PD),
    row("sglang", ANY, DECODE, ("dcp", "attn_cp"), _sglang_dcp_prefill_cp, f"{READ} {CONN}:1412", since=SINCE_PD),
    row(
        "sglang",
        ANY,
        DECODE,
        ("dcp",),
        _sglang_dcp_unequal,
        f"{READ} arg_groups/pd_disaggregation_hook.py:57",
        since=SINCE_PD,
    ),
    row(
        "sglang",
        frozenset({"mori", "ascend"}),
        DECODE,
        ("dcp",),
        _sglang_dcp_backend,
        "SGLang 0.5.21 arg_groups/pd_disaggregation_hook.py",
        since=SINCE_PD,
        until="0.5.22",
    ),
)
