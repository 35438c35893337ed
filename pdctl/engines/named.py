"""Devices that a fleet file names for transfers: every place and spelling, and which place the engine follows.

Read in SGLang 0.5.23 (`nixl/conn.py:564`, `mooncake_transfer_engine.py:26`, `mori/conn.py:450`), vLLM 0.32.0
(`mooncake_connector.py:1205`), Mooncake (`buildDeviceFilter`) and UCX (`ucs_config_names_search`).
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from pdctl.derive.connectors import extras
from pdctl.flags import Reading

if TYPE_CHECKING:
    from pdctl.fleet.loaded import LoadedFleet
    from pdctl.fleet.model import Pool

#: How names are compared. `exact`: whole names of HCAs, blanks around them dropped. `split`: the same, blanks kept.
#: `ucx`: patterns over `HCA:PORT` and interfaces. `suffixed`: names to which NIXL adds `:1`.
Reader = Literal["exact", "split", "ucx", "suffixed"]
READERS: Final[Mapping[Reader, str]] = {"exact": "SGLang", "split": "Mooncake", "suffixed": "NIXL", "ucx": "UCX"}
DEVICE_FLAGS: Final = ("--disaggregation-ib-device", "--mooncake-ib-device")
PARAMS: Final = "SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS"
TRANSFER: Final = "--kv-transfer-config"


class Named(Struct, frozen=True):
    """What one place names. `by_gpu`: the devices of each GPU where it is a map; `fault`: why it cannot be read."""

    what: str
    source: str
    text: str
    reader: Reader
    names: tuple[str, ...]
    by_gpu: Mapping[str, tuple[str, ...]] = {}
    fault: str | None = None
    narrows: bool = False
    """It takes away from what other places name."""

    @property
    def negated(self) -> bool:
        """UCX's `^a,b`: all but these."""
        return self.reader == "ucx" and self.text.startswith("^")


def spoken(loaded: "LoadedFleet", pool: "Pool", reading: Reading, env: Mapping[str, str]) -> tuple[Named, ...]:
    """The places that name devices for a pool's transfers, the one that the engine follows first.

    env: all that the engines get, inherited variables included.
    """
    engine, backend = pool.engine or loaded.fleet.engine, loaded.fleet.transfer.backend
    ucx = [variable(loaded, pool, env, "UCX_NET_DEVICES", "ucx")] if backend == "nixl" else []
    own = [_fleets(loaded, engine)]
    if engine == "sglang":
        own = [*_params(loaded, pool, env), *_flags(loaded, pool, reading), *own]
    if engine == "vllm" and backend == "mooncake":
        own = [*_connector(loaded, pool, reading), *own]
    if backend == "mooncake" and (filtered := variable(loaded, pool, env, "MC_TE_FILTERS", "exact")) is not None:
        own.append(replace(filtered, narrows=True))
    if backend == "mori":
        own.append(variable(loaded, pool, env, "MORI_RDMA_DEVICES", "exact"))
    return tuple(one for one in (*ucx, *own) if one is not None)


def variable(loaded: "LoadedFleet", pool: "Pool", env: Mapping[str, str], name: str, reader: Reader) -> Named | None:
    """A variable; an empty one, and UCX's `all`, name nothing."""
    text = env.get(name, "").strip()
    if not text or text == "all":
        return None
    place = loaded.where(f"{pool.key}.env.{name}") if name in pool.env else "environment"
    return Named(name, f"{place} {name}", text, reader, listed(text.removeprefix("^")))


def listed(text: str) -> tuple[str, ...]:
    """The names of a list with commas, each once, without blanks around them."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _fleets(loaded: "LoadedFleet", engine: str) -> Named | None:
    """`transfer.devices`, as the adapters hand them on."""
    transfer = loaded.fleet.transfer
    if not transfer.devices:
        return None
    names: tuple[str, ...] = tuple(transfer.devices)
    where, text = loaded.where("transfer.devices"), ",".join(names)
    if transfer.backend != "nixl":
        return Named("transfer.devices", where, text, "exact" if engine == "sglang" else "split", names)
    if engine == "sglang":
        return Named("transfer.devices", where, text, "suffixed", names)
    return Named("transfer.devices", where, text, "ucx", tuple(n if ":" in n else f"{n}:1" for n in names))


def _flags(loaded: "LoadedFleet", pool: "Pool", reading: Reading) -> Iterator[Named]:
    """SGLang's flags: that for disaggregation goes before that for its MoE."""
    reader: Reader = "suffixed" if loaded.fleet.transfer.backend == "nixl" else "exact"
    for flag in DEVICE_FLAGS:
        given = reading.last(flag)
        if given is not None and given.value.strip():
            where = f"{loaded.where(f'{pool.key}.args.{given.index}')} {given.spelled}"
            yield from_flag(flag, where, given.value.strip(), reader)


def from_flag(what: str, where: str, text: str, reader: Reader) -> Named:
    """A list with commas, a JSON map from GPU to such a list, or a file with one."""
    if text.endswith(".json"):
        path = Path(text)
        if not path.is_file():
            return Named(what, where, text, reader, (), fault="there is no such file on this host")
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    elif not text.startswith("{"):
        return Named(what, where, text, reader, listed(text))
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return Named(what, where, text, reader, (), fault="it is no JSON")
    good = isinstance(found, dict) and found and all(k.isdigit() and isinstance(v, str) for k, v in found.items())
    if not good:
        return Named(what, where, text, reader, (), fault="it is no map from GPU numbers to names")
    by_gpu = {str(int(gpu)): listed(names) for gpu, names in found.items()}
    return Named(what, where, text, reader, tuple(dict.fromkeys(n for names in by_gpu.values() for n in names)), by_gpu)


def _params(loaded: "LoadedFleet", pool: "Pool", env: Mapping[str, str]) -> Iterator[Named]:
    """`device_list` among the parameters that SGLang hands NIXL's backend."""
    found = an_object(env.get(PARAMS, "")).get("device_list") if loaded.fleet.transfer.backend == "nixl" else None
    if isinstance(found, str) and found.strip():
        place = loaded.where(f"{pool.key}.env.{PARAMS}") if PARAMS in pool.env else "environment"
        yield Named("device_list", f"{place} {PARAMS}", found, "suffixed", listed(found))


def _connector(loaded: "LoadedFleet", pool: "Pool", reading: Reading) -> Iterator[Named]:
    """`device_name` of vLLM's MooncakeConnector: of the pool's own config, else of the fleet's options."""
    own = reading.last(TRANSFER)
    if own is not None:
        config, where = an_object(own.value), f"{loaded.where(f'{pool.key}.args.{own.index}')} {own.spelled}"
    else:
        config = {"kv_connector": "MooncakeConnector", **loaded.fleet.transfer.options}
        where = loaded.where("transfer.options")
    for extra in extras(config):
        text = extra.get("device_name")
        if isinstance(text, str) and text:
            yield Named("device_name", where, text, "split", tuple(text.split(",")))


def an_object(text: str) -> dict[str, Any]:
    """A JSON object; empty for what is none, which others refuse."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
