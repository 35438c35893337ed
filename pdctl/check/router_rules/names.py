"""PD1039: one request goes to both sides, so both must answer to the name that it asks for.

vLLM answers 404 to another name, and routers that look for engines by name find one side only. SGLang's engines do not
look at the name, and its own router does not either: a warning there.
"""

from collections.abc import Iterator

from pdctl.check.router_rules.routed import Named, Routed
from pdctl_transfer.rules import Finding, Held, Outcome, Severity

#: Engines that answer requests for any name.
ANY_NAME = frozenset({"sglang", "reference"})


def check_names(fleet: Routed) -> Iterator[Outcome]:
    """Every pool must share a name, and that is what clients ask for where the file says so."""
    named = [*fleet.named, *([fleet.asked] if fleet.asked else [])]
    if not named:
        return
    shared = set(named[0].names).intersection(*(one.names for one in named))
    if shared:
        yield Held("served_name", "router", ", ".join(sorted(shared)))
        return
    engines = {group.manifest.engine.name for group in fleet.groups if group.sides}
    indifferent = engines <= ANY_NAME and fleet.contract is not None and not fleet.contract.by_name
    severity: Severity = "warning" if indifferent or fleet.contract is None else "error"
    said = "; ".join(f"{one.pool} {_answers(one)}" for one in named)
    evidence = tuple(dict.fromkeys(one.evidence for one in named))
    yield Finding("PD1039", "router", evidence, {"what": said}, severity)


def _answers(one: Named) -> str:
    return f"is {one.names[0]}" if one.pool == "model.name" else f"answers to {' and '.join(one.names)}"
