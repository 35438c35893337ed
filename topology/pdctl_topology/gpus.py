"""GPUs and NPUs: from their PCI class in sysfs, named by the NVIDIA driver's /proc where it is loaded.

NVML says the same with a library to load, in the same order; where it imports it names what /proc does not.
"""

from msgspec import structs

from .model import Gpu
from .pci import numa_of, pci_path
from .tree import Tree

DEVICES = "/sys/bus/pci/devices"
_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x19e5": "ascend", "0x8086": "intel"}
_COMPUTE = ("0x0302", "0x0380", "0x1200")
"""3D controller, other display controller (AMD Instinct), processing accelerator (Ascend)."""
_VGA = "0x0300"


def read_gpus(tree: Tree) -> tuple[Gpu, ...]:
    """Compute devices in order of PCI address. A VGA device counts where the NVIDIA driver holds it."""
    driven = _nvidia_driver(tree)
    found: list[Gpu] = []
    counts: dict[str, int] = {}
    for address in tree.names(DEVICES) or ():
        code = (tree.read(f"{DEVICES}/{address}/class") or "")[:6]
        if code not in _COMPUTE and not (code == _VGA and address in driven):
            continue
        vendor = _VENDORS.get(tree.read(f"{DEVICES}/{address}/vendor") or "")
        if vendor is None:
            continue
        facts = driven.get(address, {})
        index = counts[vendor] = counts.get(vendor, -1) + 1
        found.append(
            Gpu(
                index=index,
                vendor=vendor,
                model=facts.get("Model"),
                uuid=facts.get("GPU UUID"),
                pci=address,
                pci_path=pci_path(tree, f"{DEVICES}/{address}"),
                numa=numa_of(tree, f"{DEVICES}/{address}/numa_node"),
                device=tree.read(f"{DEVICES}/{address}/device"),
            )
        )
    return tuple(found)


def _nvidia_driver(tree: Tree) -> dict[str, dict[str, str]]:
    """What /proc/driver/nvidia says of each GPU, by PCI address."""
    facts = {}
    for address in tree.names("/proc/driver/nvidia/gpus") or ():
        lines = (tree.read(f"/proc/driver/nvidia/gpus/{address}/information") or "").splitlines()
        pairs = (line.partition(":") for line in lines)
        facts[address] = {key.strip(): value.strip() for key, _, value in pairs}
    return facts


def named(gpus: tuple[Gpu, ...], nvml: tuple[tuple[str, str, str], ...]) -> tuple[Gpu, ...]:
    """The same GPUs, with model and UUID from NVML where they have none."""
    known = {address: (model, uuid) for address, model, uuid in nvml}
    return tuple(
        structs.replace(gpu, model=gpu.model or known[gpu.pci][0], uuid=gpu.uuid or known[gpu.pci][1])
        if gpu.pci in known
        else gpu
        for gpu in gpus
    )


def nvml_gpus() -> tuple[tuple[str, str, str], ...] | None:
    """(PCI address, model, UUID) of each GPU as NVML numbers them; None without NVML or a driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return tuple(_nvml_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()


def _nvml_gpu(pynvml: object, index: int) -> tuple[str, str, str]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)  # type: ignore[attr-defined]
    bus = pynvml.nvmlDeviceGetPciInfo(handle).busId  # type: ignore[attr-defined]
    name = pynvml.nvmlDeviceGetName(handle)  # type: ignore[attr-defined]
    uuid = pynvml.nvmlDeviceGetUUID(handle)  # type: ignore[attr-defined]
    # NVML writes the domain with eight digits, sysfs with four
    return _text(bus).lower()[-12:], _text(name), _text(uuid)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
