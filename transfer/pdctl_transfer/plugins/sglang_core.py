"""The core beside SGLang's own transfer: the classes that SGLang is given, which know both ways.

They stand over the engine's own; where that is of another shape, of another backend, or the core is not wanted, the
engine keeps its own.
"""

import functools
import importlib
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pdctl_transfer.plugins import sglang_shape, sglang_slices
from pdctl_transfer.plugins.core import wanted
from pdctl_transfer.plugins.peer import Refusal
from pdctl_transfer.plugins.sglang_manager import Manager
from pdctl_transfer.plugins.sglang_receiver import Receiver
from pdctl_transfer.plugins.sglang_sender import Sender
from pdctl_transfer.plugins.sglang_slices import SlicingManager

log = logging.getLogger("pdctl")

BACKENDS: Final = {"mooncake": "Mooncake"}
"""Of which the core knows the classes, and how their names begin."""


class Classes(NamedTuple):
    """Ours over the engine's."""

    manager: type
    sender: type
    receiver: type


@functools.cache
def classes(backend: str) -> Classes | Refusal:
    """The classes over SGLang's, made once; a refusal where the engine is not of the shape that they stand on."""
    if backend not in BACKENDS:
        return Refusal("PD3132", f"the transfer backend {backend}")
    faults = sglang_shape.unlike(backend)
    if faults:
        more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        return Refusal("PD3131", f"{faults[0]}{more}")
    conn = importlib.import_module(f"sglang.srt.disaggregation.{backend}.conn")
    theirs = [getattr(conn, f"{BACKENDS[backend]}KV{end}") for end in ("Manager", "Sender", "Receiver")]
    manager = SlicingManager if sglang_slices.usable() else Manager
    ours: tuple[type, ...] = (manager, Sender, Receiver)
    return Classes(*(type(f"Pdctl{base.__name__}", (our, base), {}) for our, base in zip(ours, theirs, strict=True)))


def get_kv_class(original: Callable[..., Any], transfer_backend: Any, class_type: Any) -> Any:
    """Around SGLang's own: its class, or ours over it."""
    theirs = original(transfer_backend, class_type)
    name = str(getattr(class_type, "value", class_type))
    backend = str(transfer_backend.value)
    if name not in Classes._fields or backend not in BACKENDS or wanted() == "engine":
        return theirs
    try:
        made = classes(backend)
    except Exception as defect:  # the outermost edge: the engine has its own classes
        log.warning("pdctl plugin: PD3134: no core in this engine: %s", defect, exc_info=True)
        return theirs
    if isinstance(made, Refusal):
        return theirs
    return getattr(made, name)
