"""PD1049: the engines that a router's args list must be those of the fleet: each once, at its port, in its role.

Only where both are stated: a pool that leaves its ports to pdctl can be listed by nobody.
"""

from collections import Counter
from collections.abc import Iterator

from pdctl.check.router_rules.routed import Placed, Routed
from pdctl.routers.listed import Listed
from pdctl_transfer.rules import Evidence, Finding, Held, Outcome, Severity

EVERYWHERE = frozenset({"0.0.0.0", "::"})


def check_workers(fleet: Routed) -> Iterator[Outcome]:
    """One finding a kind of fault and role."""
    workers = fleet.workers
    if not workers:
        return
    found = list(_listed_wrong(fleet, workers))
    for role in ("prefill", "decode"):
        mine = tuple(one for one in fleet.engines if one.role == role)
        if mine and all(one.http for one in mine):
            found += _absent(fleet, role, mine, workers)
    yield from found
    if not found and all(one.http for one in fleet.engines) and not any(one.open for one in workers):
        yield Held("workers", "router", f"{len(workers)} engines listed, each of the fleet's once")


def _listed_wrong(fleet: Routed, workers: tuple[Listed, ...]) -> Iterator[Finding]:
    counts: Counter[tuple[str, str | None, int | None]] = Counter((one.role, one.host, one.port) for one in workers)
    seen: set[tuple[str, str | None, int | None]] = set()
    for one in workers:
        key = one.role, one.host, one.port
        if one.open:
            continue
        if one.host is None:
            yield _finding(fleet, one, f"{one.text}: no address of one engine")
        elif one.host in EVERYWHERE:
            yield _finding(fleet, one, f"{one.text}: an address to listen on, not one to reach", severity="warning")
        elif counts[key] > 1 and key not in seen:
            yield _finding(fleet, one, f"{one.text} is listed {counts[key]} times as {one.role}", severity="warning")
        elif (why := _stranger(fleet, one)) is not None:
            yield _finding(fleet, one, *why)
        seen.add(key)


def _stranger(fleet: Routed, one: Listed) -> tuple[str, Placed] | None:
    """Why a listed engine is none of its role, and the engine of the fleet that is meant."""
    if one.port is None or any(each.is_at(one) and each.role == one.role for each in fleet.engines):
        return None
    there = [each for each in fleet.engines if each.is_on(one) and each.http]
    for each in there:
        if each.is_at(one):
            return f"{one.text} is listed as {one.role}, and is {each.name}", each
    mine = [each for each in there if each.role == one.role]
    unknown = any(each.is_on(one) and not each.http for each in fleet.engines if each.role == one.role)
    if not mine or unknown:
        return None
    ports = ", ".join(str(each.http) for each in mine[:4])
    return f"{one.text}: the fleet's {one.role} on {one.host} has port {ports}", mine[0]


def _absent(fleet: Routed, role: str, mine: tuple[Placed, ...], workers: tuple[Listed, ...]) -> Iterator[Finding]:
    """Engines that get no request: some of a role is a waste, all of it no service."""
    same = [one for one in workers if one.role == role]
    if any(one.host is None or one.host in EVERYWHERE or one.port is None for one in same):
        return
    missing = [each for each in mine if not any(each.is_at(one) for one in same)]
    if not missing or any(_stranger(fleet, one) for one in same):
        return
    names = ", ".join(each.name for each in missing[:4]) + (" …" if len(missing) > 4 else "")
    severity: Severity = "error" if len(missing) == len(mine) else "warning"
    what = f"{len(missing)} of {len(mine)} {role} engines are in no list of the router: {names}"
    listed_at = tuple(fleet.at(one) for one in same[:4]) or (fleet.evidence,)
    evidence = (*listed_at, Evidence(missing[0].where, missing[0].name))
    yield Finding("PD1049", "router", evidence, {"what": what}, severity)


def _finding(
    fleet: Routed, one: Listed, what: str, meant: Placed | None = None, severity: Severity | None = None
) -> Finding:
    at = (Evidence(meant.where, f"{meant.name}: {meant.http}"),) if meant else ()
    return Finding("PD1049", "router", (fleet.at(one), *at), {"what": what}, severity)
