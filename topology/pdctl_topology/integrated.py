"""GPUs that share the memory of their CPU, so that adapters cannot reach what an engine allocates on them.

GB10: "the GPUDirect RDMA technology is not supported, and the mechanisms for direct I/O based on that technology, for
example nvidia-peermem, dma-buf or GDRCopy, do not work" (DGX Spark Porting Guide, CUDA,
https://docs.nvidia.com/dgx/dgx-spark-porting-guide/porting/cuda.html). Thor, as every Tegra: only memory of
`cudaHostAlloc` can be handed to an adapter (GPUDirect RDMA, Porting to Tegra, Changing the allocator,
https://docs.nvidia.com/cuda/gpudirect-rdma/), and engines allocate with `cudaMalloc`.

GH200, GB200 and GB300 are another case: beside the memory of their Grace CPU they have their own, which adapters reach
as on any other GPU. They are not here.
"""

from typing import Final

from .model import Gpu

NVIDIA: Final = {"0x2e12": "NVIDIA GB10", "0x2b00": "NVIDIA Thor"}
"""PCI device → product, as the driver's list of supported GPUs has them."""


def integrated(gpu: Gpu) -> str | None:
    """The product, where the GPU has no memory of its own; None for all others, unknown ones too."""
    if gpu.vendor != "nvidia":
        return None
    return NVIDIA.get(gpu.device or "") or next((name for name in NVIDIA.values() if gpu.model == name), None)
