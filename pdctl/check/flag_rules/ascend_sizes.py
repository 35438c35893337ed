"""PD1006: vllm-ascend's connectors are told the sizes of both sides, and go by them.

Without them they assert at their start (0.23.0 mooncake_connector.py:2070). With others than those that run they ask
ranks that are not there, or leave some out.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pdctl.check.groups import Group
from pdctl.derive.connectors import mover
from pdctl_transfer.rules import Evidence, Finding, Outcome

TOLD: Final = frozenset({"MooncakeConnectorV1", "MooncakeHybridConnector"})
FLAG: Final = "--kv-transfer-config"


def check_ascend_sizes(prefill: Group, decode: Group) -> Iterator[Outcome]:
    """What each side's transfer config says of both; what pdctl writes itself is right."""
    for group in (prefill, decode):
        tree = group.connector
        moves = mover(tree) if tree is not None else None
        if group.manifest.engine.name != "vllm-ascend" or moves is None or moves.name not in TOLD:
            continue
        word = group.flag(FLAG)
        evidence = Evidence(word.where, word.value) if word else group.side.evidence("connector")
        for of in (prefill, decode):
            wrong = _wrong(moves.options.get(of.role), of, written=word is not None)
            if wrong:
                what = f"{moves.name} on {group.role} {wrong}"
                yield Finding("PD1006", group.name, (evidence, of.side.evidence("attn_tp")), {"what": what})


def _wrong(said: Any, of: Group, *, written: bool) -> str | None:
    """What is wrong with the sizes of one role; the whole config is written, or the rest of it is pdctl's."""
    tp = said.get("tp_size") if isinstance(said, Mapping) else None
    if tp is None:
        return f"is told no tp_size of {of.role}: it does not start" if written or said is not None else None
    runs = of.manifest.parallel.attn_tp
    return None if str(tp) == str(runs) else f"is told TP {tp} of {of.role}, which has {runs}"
