"""PD2027, PD2307: the UCX that NIXL's wheel brings has the modules that a fleet needs, and they load.

UCX goes on without a module that does not load: without `ib` the bytes go over TCP, without `cuda` GPU memory is taken
for host memory (nixl issue 1628: `VRAM … detected as host`). Its own libibverbs looks for the libraries of drivers at
one place, which is not where Debian and Ubuntu have them; only what UCX's modules link themselves needs no look.
"""

from collections.abc import Iterator

from pdctl.preflight.facts import HostFacts, Software, Ucx
from pdctl.preflight.rules.common import readable, used
from pdctl.preflight.snapshot import Snapshot, label
from pdctl.preflight.wants import Want
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome, Skipped

VIRTUAL = "none, it is virtual"
DRIVERS = {
    "mlx5_core": ("ib_mlx5", "mlx5"),
    "efa": ("ib_efa", "efa"),
    "bnxt_en": ("ib", "bnxt_re"),
    "ionic": ("ib", "ionic"),
    "irdma": ("ib", "irdma"),
    "hns3": ("ib", "hns"),
    VIRTUAL: ("ib", "rxe"),
}
"""Kernel driver of an adapter → the module of UCX that serves it, and its provider."""
OPTIONAL = ("cuda_gdrcopy", "rdmacm")
"""Modules that NIXL does without: copies of small pieces go by the driver, and peers meet by addresses, not sockets."""
OF_GPUS = {"nvidia": "cuda", "amd": "rocm"}


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """Outcomes for each pool that transfers over NIXL, once its Python was asked."""
    for want, facts in readable(snapshot):
        programs = snapshot.programs(want)
        if want.backend != "nixl" or programs is None or programs.version("nixl", "nixl-cu12", "nixl-cu13") is None:
            continue
        subject, elsewhere = label(want.host), want.env.get("UCX_MODULE_DIR")
        brought = _taken(programs)
        if brought is None or elsewhere:
            place = (
                f"UCX_MODULE_DIR is {elsewhere}" if elsewhere else "no UCX lies beside NIXL, so it takes the system's"
            )
            yield Skipped("ucx-modules", subject, f"modules not looked at: {place}")
            continue
        yield from _modules(subject, want, facts, brought)
        yield from _providers(subject, want, facts, brought)


def _taken(programs: Software) -> Ucx | None:
    """The UCX of the wheel for torch's CUDA, where there are several."""
    major = (programs.torch_cuda or "").partition(".")[0]
    return next((one for one in programs.ucx if major and f"cu{major}" in one.folder), next(iter(programs.ucx), None))


def _modules(subject: str, want: Want, facts: HostFacts, brought: Ucx) -> Iterator[Outcome]:
    needed = dict(_needed(want, facts))
    faults = 0
    for name, why in needed.items():
        missing = brought.modules.get(name)
        if missing is None or missing:
            faults += 1
            state = f"needs {', '.join(missing)}, which nothing provides" if missing else "is not in the wheel"
            evidence = (Evidence(brought.folder, ", ".join(sorted(brought.modules))), Evidence("needed for", why))
            yield Finding("PD2027", subject, evidence, {"module": name, "state": state, "why": why})
    if needed and not faults:
        without = [name for name in OPTIONAL if brought.modules.get(name, ("absent",))]
        lacks = f"; without {' and '.join(without)}, which NIXL does not need" if without else ""
        yield Held("ucx-modules", subject, f"UCX's modules load: {', '.join(needed)}{lacks}")
    if "cuda" not in needed and brought.modules.get("cuda"):
        reason = f"cuda does not load ({', '.join(brought.modules['cuda'])}); nothing here asks for it"
        yield Skipped("ucx-modules", subject, reason)


def _needed(want: Want, facts: HostFacts) -> Iterator[tuple[str, str]]:
    """Modules, and what for. TCP is in UCX's own library."""
    if want.protocol == "rdma":
        yield "ib", "RDMA"
        for driver, names in _drivers(want, facts).items():
            yield DRIVERS[driver][0], f"RDMA over {', '.join(names)}"
    if want.host_buffers is None:
        for vendor, module in OF_GPUS.items():
            if any(gpu.vendor == vendor for gpu in facts.host.gpus):
                yield module, "memory of the GPUs"


def _drivers(want: Want, facts: HostFacts) -> dict[str, list[str]]:
    """Adapters that the want uses, by driver, as far as they are known here."""
    found: dict[str, list[str]] = {}
    for item in used(want, facts):
        hca = facts.host.hca(item.hca)
        driver = "" if hca is None else hca.driver or ("" if hca.pci else VIRTUAL)
        if driver in DRIVERS:
            found.setdefault(driver, []).append(item.hca)
    return found


def _providers(subject: str, want: Want, facts: HostFacts, brought: Ucx) -> Iterator[Outcome]:
    if want.protocol != "rdma" or brought.verbs is None:
        return
    if "libibverbs" in want.env.get("LD_PRELOAD", ""):
        yield Held("verbs-provider", subject, "LD_PRELOAD brings the system's libibverbs, which knows its providers")
        return
    for driver, names in _drivers(want, facts).items():
        provider = DRIVERS[driver][1]
        if provider in brought.providers:
            yield Held("verbs-provider", subject, f"{provider} for {', '.join(names)}")
            continue
        place = brought.verbs.replace("*", provider)
        evidence = (Evidence(brought.folder.rpartition("/")[0], brought.verbs), Evidence("driver", driver))
        yield Finding("PD2307", subject, evidence, {"devices": ", ".join(names), "place": place})
