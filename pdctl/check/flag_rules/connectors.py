"""PD1042, PD1054: where one side names its connector by flags, the other must name one too; and its release has it.

A flag of this kind is a whole command line's own. An engine without a connector computes each prompt itself, and the
router sees nothing of it.
"""

from collections.abc import Iterator

from pdctl.check.groups import Group
from pdctl.derive.connectors import KNOWN
from pdctl.flags import dialect
from pdctl_transfer.rules import Evidence, Finding, Outcome
from pdctl_transfer.rules.releases import RANGES, applies, outside

FLAG = "--kv-transfer-config"


def check_connectors(prefill: Group, decode: Group) -> Iterator[Outcome]:
    """VLLM only: SGLang's role and backend are flags that pdctl always sets."""
    if {dialect(group.manifest.engine.name) for group in (prefill, decode)} != {"vllm"}:
        return
    for role, named, other in (("decode", prefill, decode), ("prefill", decode, prefill)):
        word = named.flag(FLAG)
        if word is not None and other.flag(FLAG) is None:
            evidence = (Evidence(word.where, word.value), other.side.said(f"no {FLAG}"))
            yield Finding("PD1042", f"{prefill.name} → {decode.name}", evidence, {"side": role})


def check_registered(prefill: Group, decode: Group) -> Iterator[Outcome]:
    """Connectors that the side's release of vLLM does not have, and that no module path says where to find."""
    for group in (prefill, decode):
        release = group.release
        if group.connector is None or outside("vllm", release.stated):
            continue
        for one in group.connector.all():
            kind = KNOWN.get(one.name)
            if kind is None or one.module or applies(kind.since, kind.until, release.judged):
                continue
            word = group.flag(FLAG)
            evidence = (Evidence(word.where if word else group.side.evidence("connector").source, one.name),)
            known = f"since {kind.since}" if kind.until is None else f"in none from {RANGES['vllm'][0]} on"
            params = {"side": group.role, "connector": one.name, "version": release.judged, "known": known}
            yield Finding("PD1054", group.name, evidence, params, None if release.stated else "warning")
