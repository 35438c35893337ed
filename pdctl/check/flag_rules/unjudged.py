"""PD1034: flags that swap the buffers of an engine for others, or cut them otherwise, and that no rule judges.

What the derivation says of such a side is not what it registers, so nothing about buffers is held: the verdict is
unknown, and rules that need no layout still speak.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from pdctl.check.words import Word

#: By engine: the flag's first spelling and what it does to the buffers.
SWAPS: Final[Mapping[str, Mapping[str, str]]] = {
    "sglang": {
        "--enable-hisparse": "keeps a part of the KV in a pool on the host",
        "--enable-unified-memory": "keeps all kinds of state in one pool",
        "--prefill-only-disable-kv-cache": "keeps no KV",
        "--speculative-draft-kv-cache-dtype": "gives the drafts' KV another type",
    },
    "vllm": {
        "--kv-cache-dtype-skip-layers": "gives some layers' KV another type",
    },
}


def swapped_by(engine: str, words: Iterable[Word]) -> tuple[Word, str] | None:
    """The first flag that changes the buffers unjudged, and what it does; None where there is none."""
    table = SWAPS.get(engine, {})
    return next(((word, table[name]) for word in words for name in word.names if name in table), None)
