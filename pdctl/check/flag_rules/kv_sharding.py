"""PD1005, PD1006: what SGLang demands of a pair whose prefill shards the KV over ranks that no manifest counts.

`--enable-kv-cache-sharding` on an MLA prefill without context parallelism: every decode rank pulls from every prefill
rank, so attention TP must be equal. It does not go with decode context parallelism at all.
"""

from collections.abc import Iterator

from pdctl.check.groups import Group
from pdctl_transfer.rules import Evidence, Outcome, Pair
from pdctl_transfer.rules.pair import setting
from pdctl_transfer.rules.unequal_tp import is_mla

SHARDING = "--enable-kv-cache-sharding"


def check_kv_sharding(prefill: Group, decode: Group) -> Iterator[Outcome]:
    """Sharded MLA KV needs equal attention TP, and a decode side without context parallelism."""
    pair = Pair(prefill.side, decode.side)
    sharding = prefill.flag(SHARDING)
    if sharding is not None and pair.engines == {"sglang"} and (setting(pair.decode, "dcp") or 1) > 1:
        evidence = (decode.side.evidence("dcp"), Evidence(sharding.where, "on prefill"))
        what = f"decode context parallelism {setting(pair.decode, 'dcp')} does not go with {SHARDING}"
        yield pair.finding("PD1006", evidence, what=what)
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
