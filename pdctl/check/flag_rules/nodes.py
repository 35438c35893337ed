"""PD1043, PD1044, PD1045, PD0039: what must hold of an engine whose ranks run on several nodes.

No layout depends on which node runs a rank. All the same an engine whose sizes do not divide over its nodes does not
start, or waits for ranks that nobody starts; nodes that are to meet on a loopback address never do.
"""

from collections.abc import Iterator

from pdctl.check.exposed import is_loopback
from pdctl.engines.spans import MEETING, span_of, unplaced, unspread
from pdctl.flags import load, read_words
from pdctl.fleet import LoadedFleet, Pool
from pdctl_transfer.rules import Evidence, Finding


def check_nodes(loaded: LoadedFleet) -> Iterator[Finding]:
    """One finding a pool and fault; accelerators of two engines on one host once a pair of pools."""
    for pool in loaded.pools():
        if not pool.members:
            continue
        span = span_of(loaded, pool)
        sizes = Evidence(loaded.where(pool.key), _sizes(pool))
        if (what := unplaced(span)) is not None:
            where = Evidence(loaded.source(f"{pool.key}.nodes"), f"nodes: {span.nodes}")
            yield Finding("PD1043", pool.name, (where, sizes), {"what": f"{pool.name}: {what}"})
        elif span.nodes and span.nodes > 1 and pool.load_balancing == "external" and span.copies != span.nodes:
            what = f"{span.copies} ranks on {span.nodes} nodes, and external balancing takes one process a rank"
            where = Evidence(loaded.source(f"{pool.key}.load_balancing"), "load_balancing: external")
            yield Finding("PD1043", pool.name, (where, sizes), {"what": f"{pool.name}: {what}"})
        if (what := unspread(span)) is not None:
            where = Evidence(loaded.source(f"{pool.key}.ep"), f"ep: {span.ep}")
            yield Finding("PD1045", pool.name, (where, sizes), {"what": f"{pool.name}: {what}"})
        yield from _meetings(loaded, pool)
    yield from _shared(loaded)


def _sizes(pool: Pool) -> str:
    given = {"attn_tp": pool.attn_tp, "dp": pool.dp, "cp": pool.cp, "pp": pool.pp}
    said = ", ".join(f"{name} {size}" for name, size in given.items() if size > 1 or name == "attn_tp")
    return f"{pool.key}: {said}"


def _meetings(loaded: LoadedFleet, pool: Pool) -> Iterator[Finding]:
    """PD1044: nodes on several hosts that are to meet where only one of them is."""
    engine = pool.engine or loaded.fleet.engine
    words = read_words(load(engine), pool.args)
    for index in range(pool.replicas if pool.nodes > 1 else 0):
        hosts = [host for host, _ in pool.places(index)]
        if len(set(hosts)) == 1:
            continue
        flag = words.last(*MEETING.get(engine, ()))
        if flag is not None:
            place = f"{loaded.where(f'{pool.key}.args.{flag.index}')} {flag.spelled}"
            address = flag.value.rpartition(":")[0].strip("[]") or flag.value
        elif pool.dist_init_address:
            place = loaded.where(f"{pool.key}.dist_init_address")
            address = pool.dist_init_address[min(index, len(pool.dist_init_address) - 1)]
        else:
            place, address = loaded.where(f"{pool.key}.hosts"), hosts[0]
        if is_loopback(address):
            name = pool.members[index]
            evidence = (Evidence(place, address), Evidence(loaded.where(f"{pool.key}.hosts"), ", ".join(hosts[:4])))
            params = {"name": name, "address": address, "hosts": ", ".join(hosts[:4])}
            yield Finding("PD1044", name, evidence, params)
            return


def _shared(loaded: LoadedFleet) -> Iterator[Finding]:
    """PD0039: an accelerator of a host that two engines list. Pods count their own."""
    taken: dict[tuple[str, str], tuple[str, Pool]] = {}
    said: set[tuple[str, str]] = set()
    for pool in loaded.pools():
        if not pool.devices or not pool.shares_ports:
            continue
        for index, name in enumerate(pool.members):
            for host in dict.fromkeys(host for host, _ in pool.places(index)):
                for device in pool.devices:
                    other, theirs = taken.setdefault((host, device), (name, pool))
                    if other == name or (theirs.key, pool.key) in said:
                        continue
                    said.add((theirs.key, pool.key))
                    lines = dict.fromkeys(loaded.where(f"{one.key}.devices") for one in (theirs, pool))
                    evidence = tuple(Evidence(line, f"devices: {device}") for line in lines)
                    params = {"device": device, "host": host, "one": other, "other": name}
                    yield Finding("PD0039", f"{other}, {name}", evidence, params)
