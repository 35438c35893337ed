"""PD1056: flags that the engine takes and does nothing by, because what they go with is not there."""

from collections.abc import Iterator
from typing import Final

from pdctl.check.groups import Group
from pdctl_transfer.rules import Evidence, Finding, Outcome

DP_ATTENTION: Final = "--enable-dp-attention"


def check_without_effect(prefill: Group, decode: Group) -> Iterator[Outcome]:
    """SGLang's data-parallel attention with one replica is none."""
    for group in (prefill, decode):
        word = group.flag(DP_ATTENTION)
        if group.manifest.engine.name == "sglang" and word is not None and group.manifest.parallel.dp == 1:
            what = f"{group.role}: {DP_ATTENTION} with one rank of data parallelism splits no attention"
            yield Finding("PD1056", group.name, (Evidence(word.where, "dp: 1"),), {"what": what})
