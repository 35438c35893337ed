"""Layout manifests derived from a model config and engine arguments. Imports neither numpy nor an HTTP client."""

from collections.abc import Callable
from importlib import import_module
from typing import Final

from msgspec.structs import replace

from pdctl.derive import architectures, drafts
from pdctl.derive.config import Config
from pdctl.derive.defaults import notes
from pdctl.derive.request import Derived, Request
from pdctl.errors import InputError
from pdctl.flags import dialect

#: Engines whose layouts are known; `build` of the module of that name lays out its buffers.
ENGINES: Final = ("reference", "sglang", "vllm", "vllm-ascend")
PLATFORMS: Final = ("hopper", "sm100", "npu", "cpu")
MAX_RANKS: Final = 65_536

__all__ = ["ENGINES", "PLATFORMS", "Derived", "Request", "derive"]


def derive(request: Request) -> Derived:
    """The manifest of one side, from its config and arguments alone.

    Raises ConfigError (exit 2) naming the key of the config that is not understood, or with code PD1004 or PD1019 where
    the engine would not start; InputError naming the argument that is not usable.
    """
    if request.engine not in ENGINES:
        raise InputError(
            f"found {request.engine}, expected one of {', '.join(ENGINES)}",
            where=request.origins.get("engine", "--engine"),
        )
    _check(request)
    build: Callable[[Request], Derived] = import_module(f"pdctl.derive.{dialect(request.engine)}").build
    derived = build(request)
    assumed = notes(Config(request.config, request.config_source)) if request.engine != "reference" else ()
    assumed += architectures.notes(request) + drafts.assumed(request)
    return replace(derived, notes=(*derived.notes, *assumed)) if assumed else derived


def _check(request: Request) -> None:
    """Sizes that are whole numbers of ranks and tokens, and a platform that is known."""
    for name in ("tp", "pp", "dp", "cp", "page_size"):
        value = getattr(request, name)
        if value is not None and not 1 <= value <= MAX_RANKS:
            raise InputError(f"found {value}, expected 1 to {MAX_RANKS}", where=request.origins.get(name, f"--{name}"))
    if request.tp % (request.dp * request.cp):
        raise InputError(
            f"tensor parallelism {request.tp} does not divide by attention data x context parallelism "
            f"{request.dp} x {request.cp}",
            where=request.origins.get("dp" if request.dp > 1 else "cp", "--tp"),
        )
    if request.platform is not None and request.platform not in PLATFORMS:
        raise InputError(
            f"found {request.platform}, expected one of {', '.join(PLATFORMS)}",
            where=request.origins.get("platform", "--platform"),
        )
