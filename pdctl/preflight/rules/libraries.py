"""PD2101: every shared library that the transfer backend links is there.

The usual one is libcudart.so.12: Mooncake's CUDA wheel links it, a torch for CUDA 13 brings .so.13 only. Engines hide
the ImportError behind an install hint.
"""

from collections.abc import Iterator

from pdctl.preflight.snapshot import Snapshot, label
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome

FOLDERS = {"mooncake": ("mooncake/",), "nixl": ("nixl_cu12/", "nixl_cu13/")}
PROVIDERS = {
    "libcudart.so.12": "pip install nvidia-cuda-runtime-cu12 and put its lib folder on LD_LIBRARY_PATH",
    "libcudart.so.13": "pip install nvidia-cuda-runtime and put its lib folder on LD_LIBRARY_PATH",
    "libcuda.so.1": "this host has no NVIDIA driver: take the package mooncake-transfer-engine-non-cuda",
    "libibverbs.so.1": "apt-get install libibverbs1",
    "libmlx5.so.1": "apt-get install ibverbs-providers",
    "librdmacm.so.1": "apt-get install librdmacm1",
    "libnuma.so.1": "apt-get install libnuma1",
    "libcurl.so.4": "apt-get install libcurl4",
}
OTHER = "install the package that provides it"


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One finding a missing library, whichever of the backend's files want it."""
    for want in snapshot.wants:
        programs = snapshot.programs(want)
        if programs is None:
            continue
        folders = FOLDERS.get(want.backend, ())
        users: dict[str, list[str]] = {}
        for path, names in programs.missing.items():
            if path.startswith(folders):
                for name in names:
                    users.setdefault(name, []).append(path)
        for name, paths in sorted(users.items()):
            cuda = f"torch is built for CUDA {programs.torch_cuda}" if programs.torch_cuda else "torch brings no CUDA"
            evidence = (Evidence(programs.executable, cuda), *(Evidence("linked by", path) for path in paths[:3]))
            params = {"library": name, "backend": want.backend, "how": PROVIDERS.get(name, OTHER)}
            yield Finding("PD2101", label(want.host), evidence, params)
        if folders and not users:
            yield Held("libraries", label(want.host), f"{want.backend}: every library it links is there")
