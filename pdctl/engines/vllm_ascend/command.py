"""Fleet file → vllm-ascend's command line: vLLM's, with its own connectors and accelerators. Read in 0.23.0."""

import json
from collections.abc import Iterator
from typing import Any, Final

from pdctl.derive.flag_tables import ASCEND
from pdctl.engines.base import Command, Instance, Unread
from pdctl.engines.core import unread_core
from pdctl.engines.settled import Settled
from pdctl.engines.vllm import command as vllm
from pdctl.engines.vllm.nodes import spanning
from pdctl.engines.words import common_environment, interpreter, of_backend, with_core
from pdctl.flags import load, read_words
from pdctl.fleet.model import Fleet, Pool
from pdctl.python import module

NAME: Final = "vllm-ascend"
KV_PORT: Final = "kv_port"
"""The first of as many ports as the engine has ranks; not those that the transfer takes, 1000 a NPU from 20000 on."""
RESERVED: Final = (20000, 36000)
"""Those of a host with 16 NPUs."""


def command(instance: Instance) -> Command:
    """The exact command of one engine."""
    pool = instance.pool
    given = read_words(load(NAME), pool.args)
    argv = [*module(interpreter(pool, NAME), *vllm.PROGRAM), *vllm.modelled(instance)]
    for flag, *value in spanning(instance):
        if given.last(flag) is None:
            argv += [flag, *value]
    argv += pool.args
    notes = []
    if pool.role in vllm.ROLES and given.last(vllm.TRANSFER) is None:
        argv += [vllm.TRANSFER, json.dumps(transfer_config(instance), separators=(",", ":"))]
        if RESERVED[0] <= (port := instance.ports[KV_PORT]) < RESERVED[1]:
            notes.append(f"kv_port {port}: on hosts with 16 NPUs the transfer itself takes 20000 to 35999")
    env = common_environment(instance)
    if (devices := env.pop("CUDA_VISIBLE_DEVICES", None)) is not None:
        env["ASCEND_RT_VISIBLE_DEVICES"] = devices
    env |= {"VLLM_HOST_IP": instance.host, "VLLM_NO_USAGE_STATS": "1"}
    return Command(tuple(argv), with_core(env, pool), tuple(notes))


def transfer_config(instance: Instance) -> dict[str, Any]:
    """The connector's configuration: each side is told the sizes of both; the fleet's options on top."""
    fleet = instance.fleet
    sizes = {role: _sizes(pools[0]) for role, pools in (("prefill", fleet.prefill), ("decode", fleet.decode))}
    config: dict[str, Any] = {
        "kv_connector": of_backend(ASCEND, fleet.transfer.backend, NAME),
        "kv_role": vllm.ROLES[instance.role],
        "kv_port": str(instance.ports[KV_PORT]),
    }
    options = dict(fleet.transfer.options)
    extra = {**sizes, **options.pop("kv_connector_extra_config", {})}
    return config | {"kv_connector_extra_config": extra} | options


def _sizes(pool: Pool) -> dict[str, int]:
    return {"dp_size": pool.dp, "tp_size": pool.attn_tp, **({"pp_size": pool.pp} if pool.pp > 1 else {})}


def settled(fleet: Fleet, pool: Pool) -> Iterator[Settled]:
    """The flags that fields set: those of vLLM."""
    return vllm.settled(fleet, pool)


def unread(fleet: Fleet, pool: Pool) -> Iterator[Unread]:
    """Fields that it does not read: adapters are the NPUs' own."""
    yield from unread_core(
        fleet, pool, NAME, "leave it out: its connectors are its own, and none of them is the core's"
    )
    if pool.cp > 1:
        yield Unread(f"{pool.key}.cp", NAME, "leave it out; `--prefill-context-parallel-size` is another thing")
    if pool.role in vllm.ROLES and fleet.transfer.devices:
        yield Unread("transfer.devices", NAME, "leave it out: each NPU has an adapter of its own")
    if pool.role in vllm.ROLES and fleet.transfer.protocol == "tcp":
        yield Unread("transfer.protocol", NAME, "leave it out: its Mooncake speaks `ascend`, whatever is written")


def ports(pool: Pool) -> tuple[str, ...]:
    """The connectors listen from `kv_port` on."""
    return ("http", KV_PORT) if pool.role in vllm.ROLES else ("http",)
