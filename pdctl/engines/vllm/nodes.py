"""What the nodes of a vLLM engine are told of one another, and what answers requests.

Where each node holds whole data-parallel ranks it gets a range of them (0.32: engine/arg_utils.py:2445 to 2470); where
one rank spans nodes they form one group of workers (--nnodes, 2357 to 2405). All but the first are headless, unless
each balances requests over its own ranks (hybrid), or is one rank that the router knows (external).
"""

from collections.abc import Iterator, Sequence

from pdctl.engines.base import Instance
from pdctl.engines.settled import Settled
from pdctl.engines.words import only_meeting, only_port
from pdctl.fleet.model import Pool


def serves(instance: Instance) -> bool:
    """Whether this node answers requests."""
    return instance.node == 0 or instance.pool.load_balancing != "internal"


def ranges(pool: Pool) -> Sequence[int] | None:
    """Data-parallel ranks of each node; None where a rank spans nodes, or there is one."""
    if pool.dp_local:
        return pool.dp_local
    if pool.dp == 1 or pool.dp % pool.nodes:
        return None
    return [pool.dp // pool.nodes] * pool.nodes


def spanning(instance: Instance) -> Iterator[tuple[str, ...]]:
    """Flags of this node, each with its value."""
    if not instance.nodes:
        return
    pool, node, port = instance.pool, instance.node, instance.meeting_port
    held = ranges(pool)
    if held is None:
        yield "--nnodes", str(len(instance.nodes))
        yield "--node-rank", str(node)
        yield "--master-addr", instance.meeting
        yield "--master-port", str(port)
        if pool.dp > 1:
            yield "--data-parallel-rpc-port", str(port + 1)
    else:
        yield "--data-parallel-address", instance.meeting
        yield "--data-parallel-rpc-port", str(port)
        yield from _range(pool, node, held)
    if not serves(instance):
        yield ("--headless",)


def _range(pool: Pool, node: int, held: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """The ranks of one node. A start rank makes a node that is not headless balance for itself."""
    start = sum(held[:node])
    if pool.load_balancing == "external":
        yield "--data-parallel-rank", str(start)
        yield ("--data-parallel-external-lb",)
        return
    yield "--data-parallel-size-local", str(held[node])
    if pool.load_balancing == "hybrid":
        yield ("--data-parallel-hybrid-lb",)
    if node or pool.load_balancing == "hybrid":
        yield "--data-parallel-start-rank", str(start)


def settled_nodes(pool: Pool) -> Iterator[Settled]:
    """What the file says of nodes, ranks and experts."""
    yield Settled("--nnodes", ("nodes",), str(pool.nodes))
    for flag in ("--node-rank", "--headless"):
        yield Settled(flag, ("nodes",), None)
    for flag in ("--data-parallel-rank", "--data-parallel-start-rank"):
        yield Settled(flag, ("nodes", "dp_local"), None)
    local = set(ranges(pool) or ())
    yield Settled("--data-parallel-size-local", ("nodes", "dp_local"), str(local.pop()) if len(local) == 1 else None)
    for flag in ("--master-addr", "--data-parallel-address"):
        yield Settled(flag, ("dist_init_address",), only_meeting(pool))
    for flag in ("--master-port", "--data-parallel-rpc-port"):
        yield Settled(flag, ("ports.dist_init",), only_port(pool, "dist_init"))
    for mode in ("hybrid", "external"):
        flag = f"--data-parallel-{mode}-lb"
        yield Settled(flag, ("load_balancing",), "" if pool.load_balancing == mode else None)
    yield Settled("--enable-expert-parallel", ("ep",), "" if pool.ep is not None and pool.ep > 1 else None)
