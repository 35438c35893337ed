"""vLLM's GPU code on a machine without one: what is not there is named and means nothing, facts are told.

For tools/vllm_oracle.py. No kernel runs; classes, configs and plans are the engine's own.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import types
from typing import Any, Final

#: Packages and compiled modules that are not in a CPU environment.
ABSENT: Final = (
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm._flashmla_C",
    "vllm._flashmla_extension_C",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
    "vllm.third_party.deep_gemm",
    "vllm.third_party.flashmla.flash_mla_interface",
    "flashinfer",
    "deep_gemm",
    "cutlass",
    "tilelang",
)
#: These are found absent by what is imported first, and wanted by what comes after.
ABSENT_LATER: Final = ("torchvision", "cuda")


class Nothing:
    """A name out of what is not here: called, subclassed, indexed or reckoned with it is nothing again."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else Nothing()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __mro_entries__(self, bases: Any) -> tuple[()]:
        return ()

    def __iter__(self) -> Any:
        return iter(())

    def _nothing(self, *other: Any) -> Any:
        return Nothing()

    def _no(self, other: Any) -> bool:
        return False

    __getitem__ = __or__ = __ror__ = __mod__ = __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = _nothing
    __floordiv__ = __truediv__ = __lshift__ = __pow__ = _nothing
    __lt__ = __le__ = __gt__ = __ge__ = _no


class AbsentModule(types.ModuleType):
    """A module of such names."""

    __path__: tuple[str, ...] = ()
    __version__ = "99.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds them."""

    def __init__(self, roots: tuple[str, ...]) -> None:
        self.roots = roots

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if any(fullname == root or fullname.startswith(root + ".") for root in self.roots):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class Group:
    """A group of ranks that no message passes."""

    def __init__(self, rank: int, size: int) -> None:
        import torch

        self.rank = self.rank_in_group = self.local_rank = rank
        self.world_size, self.ranks = size, list(range(size))
        self.first_rank, self.last_rank = 0, size - 1
        self.is_first_rank, self.is_last_rank = rank == 0, rank == size - 1
        self.next_rank, self.prev_rank = (rank + 1) % size, (rank - 1) % size
        self.device = torch.device("cpu")
        self.device_group = self.cpu_group = types.SimpleNamespace(size=lambda: size, rank=lambda: rank)
        self.device_communicator, self.use_device_communicator = None, False


def pretend(capability: int) -> Any:
    """Make the engine believe in a GPU of this capability; returns the platform. Before any other import of it."""
    os.environ.update(VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR")
    os.environ["VLLM_SSM_CONV_STATE_LAYOUT"] = "DS"
    sys.meta_path.insert(0, Absent(ABSENT))
    import torch

    _absent_operators(torch)
    import vllm.triton_utils as triton
    import vllm.triton_utils.importing as importing
    from vllm import platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    triton.HAS_TRITON = importing.HAS_TRITON = True
    triton.triton, triton.tl, triton.tldevice = (AbsentModule(f"triton.{name}") for name in ("t", "tl", "dev"))

    class Platform(NonNvmlCudaPlatform):  # type: ignore[misc]
        pass

    told = {
        "get_device_capability": DeviceCapability(capability // 10, capability % 10),
        "get_device_name": {90: "H100", 100: "B200"}[capability],
        "get_device_total_memory": 80 << 30,
        "device_count": 64,
        "set_device": None,
        "num_compute_units": 132,
        "get_cuda_runtime_major": 13,
        "current_device": "meta",
    }
    for name, value in told.items():
        setattr(Platform, name, classmethod(lambda cls, *args, value=value, **kwargs: value))
    platforms._current_platform = Platform()
    return Platform


def _absent_operators(torch: Any) -> None:
    """Compiled operators that are not here mean nothing; describing one to the compiler is passed over."""
    import torch.library

    found, register = torch._ops._OpNamespace.__getattr__, torch.library.register_fake

    def operator(self: Any, name: str) -> Any:
        try:
            return found(self, name)
        except AttributeError:
            if name.startswith("__") or not self.name.startswith(("_C", "_moe_C", "_flashmla", "_vllm_fa")):
                raise
            return Nothing()

    def fake(op: Any, *args: Any, **kwargs: Any) -> Any:
        if args or not isinstance(op, str):
            return register(op, *args, **kwargs)

        def decorate(function: Any) -> Any:
            try:
                return register(op, **kwargs)(function)
            except RuntimeError:
                return function

        return decorate

    torch._ops._OpNamespace.__getattr__, torch.library.register_fake = operator, fake


def prepare() -> None:
    """Import what a dump needs, experts left out."""
    import torch
    import vllm.model_executor.layers.fused_moe as fused
    import vllm.model_executor.layers.fused_moe.layer as layer
    from vllm.model_executor.models import registry
    from vllm.transformers_utils import config as configs

    class Experts(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__()

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name.startswith("__"):
                    raise
                return Nothing()

    sys.meta_path.insert(0, Absent(ABSENT_LATER))
    fused.FusedMoEFactory = layer.FusedMoEFactory = Experts
    torch.cuda.Stream = torch.cuda.Event = Nothing
    torch.cuda.current_stream = Nothing()
    empty = torch.empty
    torch.empty = lambda *a, pin_memory=False, **k: empty(*a, **({**k, "device": "meta"} if pin_memory else k))
    registry._LazyRegisteredModel.inspect_model_cls = lambda self: registry._ModelInfo.from_model_cls(
        self.load_model_cls()
    )
    configs._CONFIG_REGISTRY["minimax_m3"] = "MiniMaxM3TextConfig"
