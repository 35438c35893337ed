"""Fleet file → SGLang's command line and environment. Pure: what is added beyond the file says why."""

import os
from collections.abc import Iterator
from typing import Final

from pdctl.engines.base import Command, Instance, Unread
from pdctl.engines.core import environment_of, unread_session
from pdctl.engines.names import FLAG, naming
from pdctl.engines.settled import Settled
from pdctl.engines.words import (
    common_environment,
    devices_unread,
    interpreter,
    model_folder,
    only_meeting,
    only_port,
    socket_address,
    unread_on_one_node,
    with_core,
)
from pdctl.flags import load, read_words
from pdctl.fleet.model import Fleet, Pool
from pdctl.python import module

KEYED: Final = "pdctl_transfer.plugins.keyed"
PROGRAM: Final = (KEYED, "sglang.launch_server")
"""The module, and the words before the engine's own flags: what hands it its key, and the engine."""

#: What SGLang needs on a host without accelerator, and why.
_CPU_FLAGS: Final = (
    ("--attention-backend", "torch_native", "the only attention that runs without compiled kernels"),
    ("--sampling-backend", "pytorch", "the default sampler is a CUDA kernel"),
    ("--disable-overlap-schedule", "", "overlap scheduling records CUDA events"),
    ("--sleep-on-idle", "", "an idle scheduler would burn a core"),
)
_RETRACTION: Final = "--disaggregation-decode-retraction-backup"


def command(instance: Instance) -> Command:
    """The exact command of one engine."""
    pool = instance.pool
    given = read_words(load("sglang"), pool.args)
    notes: list[str] = []
    argv = [*module(interpreter(pool, "sglang"), *PROGRAM), *_modelled(instance)]
    for flag, value in _spanning(instance):
        if given.last(flag) is None:
            argv += [flag, value]
    cpu = given.value("--device") == "cpu"
    for flag, value, why in _added(instance, cpu):
        if given.last(flag) is None:
            argv += [flag, value] if value else [flag]
            notes.append(f"{flag}: {why}")
    argv += pool.args
    return Command(tuple(argv), with_core(_environment(instance, cpu), pool), tuple(notes))


def settled(fleet: Fleet, pool: Pool) -> Iterator[Settled]:
    """The flags that fields of the fleet file set."""
    yield Settled("--model-path", (".model.path",), fleet.model.path, always=True)
    yield Settled(FLAG, ("served_name",), pool.served_name)
    yield Settled("--host", ("hosts",), None, always=True)
    yield Settled("--port", ("ports.http",), only_port(pool, "http"), always=True)
    yield Settled("--api-key", ("api_key_env",), None, always=True)
    yield Settled("--tp-size", ("attn_tp",), str(pool.tp))
    yield Settled("--pp-size", ("pp",), str(pool.pp))
    yield Settled("--attn-dp-size", ("dp",), str(pool.dp))
    # beside attention data parallelism it cuts the ranks that `attn_tp` counts
    attention = read_words(load("sglang"), pool.args).last("--enable-dp-attention") is not None
    yield Settled("--dp-size", ("dp", "attn_tp") if attention else ("dp",), str(pool.dp))
    yield Settled("--attn-cp-size", ("cp", "attn_tp"), str(pool.cp))
    yield from _settled_nodes(pool)
    yield Settled("--page-size", ("page_size",), str(pool.page_size))
    yield Settled("--kv-cache-dtype", ("kv_cache_dtype",), pool.kv_cache_dtype)
    for key, value in (pool.speculative or {}).items():
        yield Settled(f"--speculative-{key.replace('_', '-')}", (f"speculative.{key}",), str(value))
    if pool.role in ("prefill", "decode"):
        backend, devices = fleet.transfer.backend, ",".join(fleet.transfer.devices)
        yield Settled("--disaggregation-mode", (pool.role,), pool.role, always=True)
        yield Settled("--disaggregation-transfer-backend", (".transfer.backend",), backend, always=True)
        yield Settled("--disaggregation-ib-device", (".transfer.devices",), devices)
        port = only_port(pool, "bootstrap")
        yield Settled("--disaggregation-bootstrap-port", ("ports.bootstrap",), port, always=True)


def _settled_nodes(pool: Pool) -> Iterator[Settled]:
    """What the file says of nodes, which each of them is told for itself."""
    yield Settled("--ep-size", ("ep",), str(pool.ep))
    yield Settled("--nnodes", ("nodes",), str(pool.nodes))
    yield Settled("--node-rank", ("nodes",), None)
    address, port = only_meeting(pool), only_port(pool, "dist_init")
    meeting = socket_address(address, port) if address and port else None
    yield Settled("--dist-init-addr", ("dist_init_address", "ports.dist_init"), meeting)


def unread(fleet: Fleet, pool: Pool) -> Iterator[Unread]:
    """Fields that SGLang does not read, or not with the others that are given."""
    yield from unread_on_one_node(pool)
    for name in ("dp_local", "load_balancing") if pool.nodes > 1 else ():
        if name in pool.model_fields_set:
            yield Unread(f"{pool.key}.{name}", "SGLang", "leave it out: its first node spreads requests")
    yield from unread_session(fleet, pool)
    if pool.role not in ("prefill", "decode"):
        return
    transfer = fleet.transfer
    if transfer.options:
        hint = "SGLang takes options of its transfers as variables, in `env`: SGLANG_DISAGGREGATION_…"
        yield Unread("transfer.options", "SGLang", hint)
    yield from devices_unread(fleet, pool)


def _modelled(instance: Instance) -> Iterator[str]:
    pool, fleet = instance.pool, instance.fleet
    yield from ("--model-path", model_folder(instance.model), *naming(fleet, pool))
    yield from ("--host", instance.host, "--port", str(instance.ports["http"]))
    sizes = (("--tp-size", pool.tp), ("--pp-size", pool.pp), ("--dp-size", pool.dp), ("--attn-cp-size", pool.cp))
    for flag, size in sizes:
        if size > 1:
            yield from (flag, str(size))
    if pool.dp > 1:
        yield "--enable-dp-attention"
    if pool.ep is not None:
        yield from ("--ep-size", str(pool.ep))
    if pool.page_size is not None:
        yield from ("--page-size", str(pool.page_size))
    if pool.kv_cache_dtype != "auto":
        yield from ("--kv-cache-dtype", pool.kv_cache_dtype)
    for key, value in (pool.speculative or {}).items():
        yield from (f"--speculative-{key.replace('_', '-')}", str(value))
    if pool.role not in ("prefill", "decode"):
        return
    yield from ("--disaggregation-mode", pool.role, "--disaggregation-transfer-backend", fleet.transfer.backend)
    if "bootstrap" in instance.ports:
        yield from ("--disaggregation-bootstrap-port", str(instance.ports["bootstrap"]))
    if fleet.transfer.devices and fleet.transfer.protocol == "rdma":
        yield from ("--disaggregation-ib-device", ",".join(fleet.transfer.devices))


def _spanning(instance: Instance) -> Iterator[tuple[str, str]]:
    """What each node is told of the others."""
    if instance.nodes:
        yield "--nnodes", str(len(instance.nodes))
        yield "--node-rank", str(instance.node)
        yield "--dist-init-addr", socket_address(instance.meeting, instance.meeting_port)


def _added(instance: Instance, cpu: bool) -> Iterator[tuple[str, str, str]]:
    """Flags that the file does not name: (flag, value, why). One that `args` names is left to `args`."""
    yield "--enable-metrics", "", "the monitor reads them"
    if cpu:
        yield from _CPU_FLAGS
        if instance.role == "decode":
            yield _RETRACTION, "cpu_tensor", "without it a decode engine on CPU does not start"


def _environment(instance: Instance, cpu: bool) -> dict[str, str]:
    pool, transfer = instance.pool, instance.fleet.transfer
    env = common_environment(instance) | {"SGLANG_HOST_IP": instance.host} | environment_of(instance)
    if instance.role == "decode":
        # Decode forgets a prefill engine after two missed heartbeats. One that its guard has back before, which a fast
        # machine does in nine seconds, is never missed, and each request waits for addresses where nobody listens.
        env["SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL"] = "2"
    if transfer.backend == "mooncake":
        env["MOONCAKE_PROTOCOL"] = transfer.protocol
        if transfer.protocol == "tcp":
            env["MC_FORCE_TCP"] = "1"  # else a host that has HCAs moves the bytes over them all the same
    if transfer.backend == "nixl" and transfer.protocol == "tcp":
        env |= {"UCX_TLS": "tcp,self", "UCX_KEEPALIVE_INTERVAL": "inf"}
        if instance.host.startswith("127."):
            env["UCX_NET_DEVICES"] = "lo"
    if cpu:
        env |= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
        ranks = pool.tp * pool.pp
        if ranks > 1:  # one rank a NUMA node unless told
            cores = os.cpu_count() or 1
            env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(rank % cores) for rank in range(ranks))
    return env
