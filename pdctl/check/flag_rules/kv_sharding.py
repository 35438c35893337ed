"""PD1005, PD1006: what SGLang demands of a pair whose flags shard the KV over ranks that the manifest does not count.

`--enable-kv-cache-sharding` on an MLA prefill without context parallelism: every decode rank pulls from every prefill
rank, so attention TP must be equal. `--dcp-size` on decode: an MLA or hybrid MLA model, prefill CP 1, no such sharding.
"""

from collections.abc import Iterator

from pdctl.check.groups import Group
from pdctl_transfer.rules import Evidence, Outcome, Pair
from pdctl_transfer.rules.unequal_tp import is_mla

SHARDING = "--enable-kv-cache-sharding"
DECODE_CP = ("--dcp-size", "--decode-context-parallel-size")


def check_kv_sharding(prefill: Group, decode: Group) -> Iterator[Outcome]:
    """Sharded MLA KV needs equal attention TP."""
    pair = Pair(prefill.side, decode.side)
    sharding = prefill.flag(SHARDING)
    if sharding is None or pair.engines != {"sglang"} or not is_mla(pair) or pair.prefill.parallel.attn_cp != 1:
        return
    if pair.unequal_tp:
        yield pair.finding(
            "PD1005",
            [*pair.evidence("attn_tp"), Evidence(sharding.where, "MLA KV is sharded over attention TP")],
            "error",
            prefill_tp=pair.tp[0],
            decode_tp=pair.tp[1],
            engine="sglang",
            backend=pair.backend,
            states="sharded MLA KV is refused",
        )


def check_decode_cp(prefill: Group, decode: Group) -> Iterator[Outcome]:
    """Each of the three demands is a reason of its own."""
    pair = Pair(prefill.side, decode.side)
    size = decode.flag(*DECODE_CP)
    if size is None or not size.number or size.number == 1 or pair.engines != {"sglang"}:
        return
    here = Evidence(size.where, size.value)
    reasons: list[tuple[str, Evidence]] = []
    if not is_mla(pair):
        reasons.append(("needs an MLA model", pair.decode_side.said("kv: split by heads")))
    if pair.prefill.parallel.attn_cp != 1:
        reasons.append(("needs prefill CP 1", pair.prefill_side.evidence("attn_cp")))
    sharding = prefill.flag(SHARDING)
    if sharding is not None:
        reasons.append((f"does not go with {SHARDING}", Evidence(sharding.where, "on prefill")))
    if reasons:
        what = f"decode context parallelism {size.number} {', '.join(reason for reason, _ in reasons)}"
        yield pair.finding("PD1006", [here, *(evidence for _, evidence in reasons)], what=what)
