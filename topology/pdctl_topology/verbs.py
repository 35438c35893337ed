"""The same devices as libibverbs sees them, to compare with sysfs. Needs pyverbs, which distributions package.

sysfs and verbs part where a container has one without the other, or where no provider library fits the driver.
"""

from typing import Any

from msgspec import Struct

from .gids import classify
from .model import Host

PORT_STATES = {1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE"}
LINK_LAYERS = {1: "InfiniBand", 2: "Ethernet"}
MTUS = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}


class VerbsPort(Struct, frozen=True):
    """A port as `ibv_query_port` gives it."""

    number: int
    state: str | None
    link_layer: str | None
    active_mtu: int | None
    gids: tuple[tuple[int, str], ...]
    """(index, address) of the entries in use."""


class VerbsDevice(Struct, frozen=True):
    """A device as `ibv_open_device` gives it; `fault` where it cannot be opened."""

    name: str
    ports: tuple[VerbsPort, ...]
    fault: str | None = None


def read_verbs() -> tuple[VerbsDevice, ...] | None:
    """Devices of this machine by libibverbs; None where pyverbs does not import."""
    try:
        from pyverbs import device
        from pyverbs.pyverbs_error import PyverbsRDMAError
    except ImportError:
        return None
    try:
        names = [_text(item.name) for item in device.get_device_list()]
    except PyverbsRDMAError:
        # what it raises where there is no RDMA at all
        return ()
    return tuple(_device(device, PyverbsRDMAError, name) for name in names)


def _device(library: Any, fault: type[Exception], name: str) -> VerbsDevice:
    try:
        with library.Context(name=name) as context:
            count = context.query_device().phys_port_cnt
            return VerbsDevice(name, tuple(_port(context, fault, number) for number in range(1, count + 1)))
    except fault as error:
        return VerbsDevice(name, (), str(error))


def _port(context: Any, fault: type[Exception], number: int) -> VerbsPort:
    attributes = context.query_port(number)
    gids = []
    for index in range(attributes.gid_tbl_len):
        try:
            text = str(context.query_gid(number, index))
        except fault:
            continue
        gid = classify(text)
        if gid is not None and gid[1] != "null":
            gids.append((index, gid[0]))
    return VerbsPort(
        number,
        PORT_STATES.get(int(attributes.state)),
        LINK_LAYERS.get(int(attributes.link_layer)),
        MTUS.get(int(attributes.active_mtu)),
        tuple(gids),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def disagreements(host: Host, devices: tuple[VerbsDevice, ...]) -> tuple[str, ...]:
    """In words, each point on which sysfs and libibverbs differ."""
    found = []
    sysfs, verbs = {hca.name: hca for hca in host.hcas}, {device.name: device for device in devices}
    found += [f"{name}: in sysfs, not seen by libibverbs" for name in sorted(sysfs.keys() - verbs.keys())]
    found += [f"{name}: seen by libibverbs, not in sysfs" for name in sorted(verbs.keys() - sysfs.keys())]
    for name in sorted(sysfs.keys() & verbs.keys()):
        if verbs[name].fault is not None:
            found.append(f"{name}: libibverbs cannot open it: {verbs[name].fault}")
            continue
        ports = {port.number: port for port in verbs[name].ports}
        for one in sysfs[name].ports:
            other = ports.get(one.number)
            if other is None:
                found.append(f"{name}: port {one.number} not seen by libibverbs")
                continue
            facts = (
                ("state", one.state, other.state),
                ("link layer", one.link_layer, other.link_layer),
                ("GIDs", tuple((gid.index, gid.address) for gid in one.gids), other.gids),
            )
            found += [
                f"{name} port {one.number}: {what} {left} in sysfs, {right} by libibverbs"
                for what, left, right in facts
                if left != right
            ]
    return tuple(found)
