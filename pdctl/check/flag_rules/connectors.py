"""PD1042: where one side names its connector by flags, the other must name one too.

A flag of this kind is a whole command line's own. An engine without a connector computes each prompt itself, and the
router sees nothing of it.
"""

from collections.abc import Iterator

from pdctl.check.groups import Group
from pdctl_transfer.rules import Evidence, Finding, Outcome

FLAG = "--kv-transfer-config"


def check_connectors(prefill: Group, decode: Group) -> Iterator[Outcome]:
    """VLLM only: SGLang's role and backend are flags that pdctl always sets."""
    if {group.manifest.engine.name for group in (prefill, decode)} != {"vllm"}:
        return
    for role, named, other in (("decode", prefill, decode), ("prefill", decode, prefill)):
        word = named.flag(FLAG)
        if word is not None and other.flag(FLAG) is None:
            evidence = (Evidence(word.where, word.value), other.side.said(f"no {FLAG}"))
            yield Finding("PD1042", f"{prefill.name} → {decode.name}", evidence, {"side": role})
