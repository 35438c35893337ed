"""Lets the unmodified SGLang 0.5.23 run beside a CPU-only torch; loaded by a .pth file in the test environment.

Three things stand between the two, each undone at the import of the module concerned:

1. torchvision's wheels are CUDA builds. Their extension cannot load, so two operators that its Python code
   decorates are never declared: declare them.
2. SGLang registers KV memory with NIXL as "VRAM"; UCX refuses host memory under that name: say "DRAM".
3. With host tensor indices Mooncake's sender makes the scheduler pin memory and record a CUDA event: choose the
   plain path.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


def _declare_torchvision_operators() -> None:
    import torch

    for name in ("nms", "qnms"):
        try:
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        except RuntimeError:  # declared already: a torchvision that does load
            pass


def _plain_indices(module: ModuleType) -> None:
    module.MooncakeKVSender.supports_host_tensor_indices = False  # type: ignore[attr-defined]


def _host_memory(module: ModuleType) -> None:
    module._normalize_kv_mem_kinds = lambda kinds, count: ["DRAM"] * count  # type: ignore[attr-defined]


_AFTER_IMPORT: dict[str, Callable[[ModuleType], None]] = {
    "sglang.srt.disaggregation.mooncake.conn": _plain_indices,
    "sglang.srt.disaggregation.nixl.conn": _host_memory,
}


class _Hook(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "torchvision":
            _declare_torchvision_operators()
        after = _AFTER_IMPORT.get(name)
        spec = PathFinder.find_spec(name, path, target) if after else None
        if spec is None or spec.loader is None or after is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            after(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Hook())
