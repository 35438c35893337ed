"""Which way a pair's state goes: by the engine's own transfer, or by the core. A pure choice, with code and reason.

Both sides must have the core. Who wants it plainly (`pdctl`) has it where it can carry the pair; `auto` has it where
the engine's own transfer cannot move the state, or sends each token by itself. SGLang's decode engines choose for each
prefill engine, by their own word. vLLM's connector is fixed at the start: one choice for the whole fleet.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct, structs

from pdctl.catalog import entries
from pdctl.check.groups import Group
from pdctl.check.moves import STAGING, TRUE
from pdctl.fleet.model import Core
from pdctl_transfer.rules import Finding, Pair, judge
from pdctl_transfer.rules.pair import listed

CHOOSES: Final = "sglang"
"""The engine that has both ways in one process."""
FIXED: Final = "vllm"
"""The engine whose connector is fixed at its start."""
DOUBTS: Final = frozenset({"PD1005", "PD1006", "PD1012", "PD1029", "PD1047"})
"""What is said of an engine's own transfer; as a warning it means that nobody has established it."""
OBSTACLES: Final = ("--enable-kv-cache-sharding", "--enable-hisparse")
LIMIT: Final = "PD1061"
"""What the core does not carry; any other rule is one of both ways."""


class Choice(Struct, frozen=True):
    """The way, the code that says so, and why, in a few words."""

    by_core: bool
    code: str
    reason: str


def choose(
    words: Sequence[Core], decides: Core, of_engine: str | None, of_core: str | None, slow: str | None
) -> Choice | None:
    """The way of engines that were told these words, of which `decides` does. None where nobody wants the core.

    of_engine, of_core: what one way cannot do and the other can. slow: why the engine's own is much slower, if it is.
    """
    if set(words) == {"engine"}:
        return None
    if "engine" in words:
        code = "PD1059" if "pdctl" in words else "PD1058"
        return Choice(False, code, "one side keeps the engine's own transfer, and both must have the core")
    if of_core is not None:
        return Choice(False, "PD1059" if decides == "pdctl" else "PD1058", f"the core does not carry it: {of_core}")
    if decides == "pdctl":
        also = f"; the engine's own transfer could not: {of_engine}" if of_engine else ""
        return Choice(True, "PD1057", f"as the fleet file says{also}")
    if of_engine is not None:
        return Choice(True, "PD1057", f"the engine's own transfer cannot: {of_engine}")
    if slow is not None:
        return Choice(True, "PD1057", slow)
    return Choice(False, "PD1058", "the engine's own transfer carries it as well")


def way_of(pair: Pair, prefill: Group, decode: Group) -> tuple[Pair, tuple[Finding, ...]]:
    """A pair of SGLang by the way that its decode engine will choose, and what there is to say of that."""
    if pair.engines != {CHOOSES}:
        return pair, ()
    ours, words = structs.replace(pair, core=True), (prefill.moves.core, decode.moves.core)
    of_engine, of_core = faults([(pair, ours)])
    of_core = of_core or _obstacle(prefill, decode)
    choice = _turned_off(prefill, decode) or choose(words, decode.moves.core, of_engine, of_core, _slow(pair))
    if choice is None:
        return pair, ()
    return ours if choice.by_core else pair, (said(choice, pair.subject, (prefill, decode)),)


def way_of_fleet(own: Sequence[Group], ours: Sequence[Group]) -> Choice | None:
    """The one way of vLLM's engines, by their groups with each connector: the core's on every side, or on none."""
    choice = _turned_off(*own)
    if choice is not None:
        return choice
    words = [group.moves.core for group in own]
    pairs = list(zip(_pairs(own), _pairs(ours), strict=True))
    if not pairs and "pdctl" not in words and "engine" not in words:
        return Choice(False, "PD1058", "what the two ways can do is not known where the layout is not")
    return choose(words, "pdctl" if "pdctl" in words else "auto", *faults(pairs), None)


def said(choice: Choice, subject: str, groups: Sequence[Group]) -> Finding:
    """The choice in a report, with the lines that asked for it."""
    by = "the transfer core" if choice.by_core else "the engine's own transfer"
    evidence = dict.fromkeys(one for group in groups for one in group.moves.said)
    return Finding(choice.code, subject, tuple(evidence), {"what": f"{subject} goes by {by}: {choice.reason}"})


def faults(pairs: Sequence[tuple[Pair, Pair]]) -> tuple[str | None, str | None]:
    """What the engine's own transfer cannot do, or has not been seen to, that the core can; and what the core cannot.

    pairs: each by the engine's own transfer, and by the core. Where something is wrong either way it is no reason.
    """
    engine: list[str] = []
    core: list[str] = []
    for own, ours in pairs:
        here = list(_faults(ours, doubts=False))
        core += [fault for fault in here if fault.startswith(LIMIT)]
        engine += [] if here else _faults(own, doubts=True)
    return listed(engine, 3) or None, listed(core, 3) or None


def _faults(pair: Pair, *, doubts: bool) -> Iterator[str]:
    for one in judge(pair):
        if isinstance(one, Finding):
            severity = one.severity or entries()[one.code].severity
            if severity == "error" or (doubts and severity == "warning" and one.code in DOUBTS):
                yield f"{one.code} {one.params.get('what') or one.params.get('states') or ''}".strip()


def _pairs(groups: Sequence[Group]) -> Iterator[Pair]:
    """Each prefill with each decode group of vLLM whose layout is known."""
    known = [one for one in groups if one.sides and one.unknown is None]
    for prefill in (one for one in known if one.role == "prefill"):
        for decode in (one for one in known if one.role == "decode"):
            yield Pair(prefill.side, decode.side)


def _turned_off(*groups: Group) -> Choice | None:
    """Where somebody wants the core and somebody has turned the plugin off."""
    words = {group.moves.core for group in groups}
    if words == {"engine"} or not any(group.moves.off for group in groups):
        return None
    return Choice(False, "PD1059" if "pdctl" in words else "PD1058", "PDCTL_PLUGIN is off, so there is no core")


def _obstacle(*groups: Group) -> str | None:
    """Settings of SGLang with which the plugin leaves an engine its own transfer (PD3132)."""
    for group in groups:
        for flag in OBSTACLES:
            if group.flag(flag) is not None:
                return f"{flag} on {group.name}"
        if group.moves.limits.get(STAGING, "").strip().lower() in TRUE:
            return f"{STAGING} on {group.name}"
    return None


def _slow(pair: Pair) -> str | None:
    if not pair.unequal_tp:
        return None
    tp = f"attention TP {pair.tp[0]} → {pair.tp[1]}"
    return f"at {tp} the engine's own transfer sends each token of each layer by itself"
