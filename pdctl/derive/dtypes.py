"""Bytes an element takes, by the names that flags and configs use for element types."""

from collections.abc import Mapping
from typing import Final

ITEMSIZE: Final[Mapping[str, int]] = {
    "float64": 8,
    "float32": 4,
    "float": 4,
    "bfloat16": 2,
    "bf16": 2,
    "float16": 2,
    "fp16": 2,
    "half": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}


def itemsize(name: str) -> int | None:
    """Bytes of one element of the named type, with or without a `torch.` prefix; None where it is not known."""
    return ITEMSIZE.get(name.removeprefix("torch."))
