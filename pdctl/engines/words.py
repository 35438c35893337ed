"""Words of a command line, its environment, and words of a log: what the adapters of real engines share."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pdctl.engines.base import Instance, Unread, python_of
from pdctl.engines.builtin_models import PREFIX, folder_of, is_builtin
from pdctl.engines.cache import cache_root
from pdctl.engines.shipping import core_file
from pdctl.errors import GateError, InputError
from pdctl.fleet.model import Fleet, Pool
from pdctl.python import search_path

UCX_NET_DEVICES: Final = "UCX_NET_DEVICES"


def interpreter(pool: Pool, engine: str) -> str:
    """The Python that runs this engine: the pool's environment; PDCTL_<ENGINE>_PYTHON; the environment that
    `tools/engine_envs.py` built; pdctl's own."""
    if pool.environment is not None:
        return python_of(pool)
    named = os.environ.get(f"PDCTL_{engine.upper().replace('-', '_')}_PYTHON")
    if named:
        return named
    built = cache_root() / "envs" / engine / "bin" / "python"
    return str(built) if built.exists() else python_of(pool)


def of_backend(known: Mapping[str, str], backend: str, engine: str) -> str:
    """What an engine calls what it needs for a backend. Raises InputError (PD3105) where it has nothing for it."""
    if backend not in known:
        message = f"pdctl knows no connector of {engine} for {backend}"
        raise InputError(message, where="transfer.backend", code="PD3105", hint=f"one of {', '.join(known)}")
    return known[backend]


def only_port(pool: Pool, purpose: str) -> str | None:
    """The port that the file gives to the pool's only engine; None where it gives none, or each engine has another."""
    return str(pool.ports[purpose]) if purpose in pool.ports and pool.replicas == 1 else None


def only_meeting(pool: Pool) -> str | None:
    """The address at which the file lets the nodes of the pool's only engine meet; None where it gives none."""
    given = pool.dist_init_address
    return given[0] if len(given) == 1 == pool.replicas else None


def unread_on_one_node(pool: Pool) -> Iterator[Unread]:
    """Fields that say how nodes of one engine find each other and share its work, where it has one."""
    for name in ("dist_init_address", "dp_local", "load_balancing"):
        if pool.nodes == 1 and name in pool.model_fields_set:
            yield Unread(f"{pool.key}.{name}", "an engine of one node", "leave it out, or say its `nodes`")


def socket_address(host: str, port: int | str) -> str:
    """Host and port as one word, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def model_folder(path: str) -> str:
    """The path that the engine gets: a built-in model's folder, any other as it is."""
    return str(folder_of(path.removeprefix(PREFIX))) if is_builtin(path) else path


def common_environment(instance: Instance) -> dict[str, str]:
    """What every real engine gets: no hub for a model that lies here, its accelerators."""
    env: dict[str, str] = {}
    if is_builtin(instance.model) or instance.model.startswith(("/", ".", "~")):
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if instance.devices:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(instance.devices)
    return env


def ucx_devices(fleet: Fleet) -> dict[str, str]:
    """The variable that keeps NIXL's UCX to the fleet's devices. A name without port would match none."""
    transfer = fleet.transfer
    if transfer.backend != "nixl" or transfer.protocol != "rdma" or not transfer.devices:
        return {}
    return {UCX_NET_DEVICES: ",".join(name if ":" in name else f"{name}:1" for name in transfer.devices)}


def devices_unread(fleet: Fleet, pool: Pool) -> Iterator[Unread]:
    """`transfer.devices` that do not reach the transfer library: there is no device to TCP, and a variable of the pool
    that names others wins over NIXL's."""
    transfer = fleet.transfer
    if not transfer.devices:
        return
    if transfer.protocol == "tcp":
        yield Unread("transfer.devices", "TCP", "leave it out, or write `protocol: rdma`")
    elif transfer.backend == "nixl" and UCX_NET_DEVICES in pool.env:
        wanted = ucx_devices(fleet)[UCX_NET_DEVICES]
        if set(wanted.split(",")) != set(pool.env[UCX_NET_DEVICES].split(",")):
            reader = f"UCX, for {pool.key}.env sets {UCX_NET_DEVICES} to others,"
            yield Unread("transfer.devices", reader, f"write one of the two, or {UCX_NET_DEVICES}: {wanted}")


def with_core(env: Mapping[str, str], pool: Pool) -> dict[str, str]:
    """An engine's environment with what the pool says on top, and the core first on PYTHONPATH."""
    path = search_path(str(core_file()), pool.env.get("PYTHONPATH", ""))
    return {**env, **pool.env, "PYTHONPATH": path}


def last_stage(log: str, stages: Sequence[tuple[str, str]], fatal: Sequence[str]) -> str | None:
    """What the last of these texts in a log means, in a few words; None before the first.

    `stages`: what the log says and what that means; `fatal`: what a process says that is about to end.
    """
    reached: tuple[int, str] | None = None
    for text, meaning in (*stages, *((text, f"failed: {text}") for text in fatal)):
        place = log.rfind(text)
        if place >= 0 and (reached is None or place > reached[0]):
            reached = (place, meaning)
    return reached[1] if reached else None


def no_answer(python: str, what: str, seconds: float) -> GateError:
    """PD0056: an environment's interpreter did not say in time what it was asked, so that is not known."""
    hint = f"run `{python} -c pass`: its file system or the machine may be too slow"
    return GateError(f"{python} did not say within {seconds:g} s {what}", code="PD0056", hint=hint)
