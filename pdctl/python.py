"""How a Python of ours is started: with nothing of the folder that the operator stands in.

`python -m` and `python -c` look into the current folder first. Whoever runs pdctl in a downloaded folder would run its
`random.py`, with their own tokens in the environment. Every Python that pdctl starts is spelled here, and only here:
`-P` keeps the folder out of the process, the environment keeps it out of the processes that this one starts.
"""

import os
from collections.abc import Mapping
from typing import Final

SAFE: Final = "-P"
SAFE_ENVIRONMENT: Final[Mapping[str, str]] = {"PYTHONSAFEPATH": "1"}

#: What -P does, in words that a Python before 3.11 knows too. `sys` is built in, so no folder can offer another.
_WITHOUT_FOLDER: Final = "import sys; sys.path[:] = [entry for entry in sys.path if entry]\n"
_FED: Final = "exec(compile(sys.stdin.buffer.read(), '<stdin>', 'exec'))"


def module(python: str, name: str, *words: str) -> tuple[str, ...]:
    """`python -m NAME WORDS…`; Python 3.11 or later."""
    return (python, SAFE, "-m", name, *words)


def code(python: str, source: str, *words: str) -> tuple[str, ...]:
    """`python -c SOURCE WORDS…`, on any Python 3: an engine's own may be too old, and is to say so itself."""
    return (python, "-c", _WITHOUT_FOLDER + source, *words)


def fed(python: str) -> tuple[str, ...]:
    """A program that comes by standard input, on any Python 3."""
    return code(python, _FED)


def environment(*layers: Mapping[str, str]) -> dict[str, str]:
    """The environment of a Python of ours: the layers, later ones on top, and what keeps the current folder out."""
    merged: dict[str, str] = {}
    for layer in layers:
        merged |= layer
    if "PYTHONPATH" in merged:
        merged["PYTHONPATH"] = search_path(merged["PYTHONPATH"])
    return {**merged, **SAFE_ENVIRONMENT}


def search_path(*parts: str) -> str:
    """One PYTHONPATH of several. Empty entries, as in `PYTHONPATH=$PYTHONPATH:/x`, would mean the current folder."""
    return os.pathsep.join(entry for part in parts for entry in part.split(os.pathsep) if entry)
