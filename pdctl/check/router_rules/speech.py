"""PD1048: the router must speak to the engines in the way that their connector waits for.

A router that speaks another way gets answers all the same: decode computes every prompt itself, waits for pages that
nobody sends, or refuses. A router or connector that pdctl does not know is not judged.
"""

from collections.abc import Iterator
from difflib import get_close_matches

from pdctl.check.groups import Group
from pdctl.check.router_rules.routed import Routed
from pdctl.flags import Given, read
from pdctl.flags.table import Flag, Table
from pdctl.routers import CONTRACTS, Contract, needed
from pdctl.routers.contracts import SPEECHES, Speech
from pdctl_transfer.rules import Evidence, Finding, Held, Outcome, Severity, Skipped
from pdctl_transfer.rules.pair import setting

GRPC = ("--grpc", "--grpc-mode")
RULE = "router"


def check_speech(fleet: Routed) -> Iterator[Outcome]:
    """One outcome for each way that engines wait for."""
    contract = fleet.contract
    if contract is None:
        near = get_close_matches(fleet.kind, [known.name for known in CONTRACTS], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        yield Skipped(RULE, RULE, f"what {fleet.kind} says to engines is not known to pdctl: not judged{hint}")
        return
    waiting: dict[tuple[Speech | None, str], list[Group]] = {}
    for group in fleet.groups:
        if group.sides:
            name, need = _need(group)
            waiting.setdefault((need, name), []).append(group)
    for (need, name), groups in waiting.items():
        yield _judge(fleet, contract, need, name, groups)


def _need(group: Group) -> tuple[str, Speech | None]:
    """What waits, in words, and for what."""
    engine = group.release.name.partition(" ")[0]
    connector = setting(group.manifest, "connector")
    return connector or engine, needed(group.manifest.engine.name, connector)


def _judge(fleet: Routed, contract: Contract, need: Speech | None, name: str, groups: list[Group]) -> Outcome:
    if need is None:
        return Skipped(RULE, RULE, f"what {name} waits for is not known to pdctl: not judged behind {contract.title}")
    if any(group.flag(*GRPC) for group in groups):
        return Skipped(RULE, RULE, f"{contract.title} before engines over gRPC: not judged")
    word = _word(fleet, contract)
    spoken = contract.spoken(word.value if word else _by_pdctl(fleet, contract, need))
    if spoken is None:
        flag = contract.chosen.flag if contract.chosen else ""
        return Skipped(
            RULE, RULE, f"how {contract.title} speaks is not told: {flag} {word.value if word else 'is not given'}"
        )
    if need in spoken:
        return Held(RULE, RULE, f"{contract.title} {SPEECHES[need]}, as {name} expects")
    if contract.open:
        return Skipped(RULE, RULE, f"{contract.title} before {name}: not known to pdctl, not judged")
    ways = " or ".join(SPEECHES[way] for way in sorted(spoken))
    what = f"{contract.title} {ways}; {name} expects one that {SPEECHES[need]}"
    evidence = [fleet.evidence]
    if word is not None:
        evidence.append(Evidence(fleet.places[word.index], f"{word.spelled} {word.value}"))
    evidence += [group.side.known("connector") or group.side.evidence("engine") for group in groups]
    evidence.append(Evidence(contract.source, "where it speaks so"))
    severity: Severity | None = "warning" if need in contract.some else None
    return Finding("PD1048", RULE, tuple(dict.fromkeys(evidence)), {"what": what}, severity)


def _word(fleet: Routed, contract: Contract) -> Given | None:
    """The flag that chooses how the router speaks, where its args give it."""
    if contract.chosen is None:
        return None
    flag = contract.chosen.flag
    return read(Table("router", "", False, False, (Flag((flag,)),)), fleet.args).last(flag)


def _by_pdctl(fleet: Routed, contract: Contract, need: Speech) -> str | None:
    """What pdctl gives that flag itself, on a router that it starts."""
    return contract.chosen.word(need) if fleet.started and contract.chosen else None
