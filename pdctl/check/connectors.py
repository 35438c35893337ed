"""The connector tree of each pool of vLLM, as its args or the fleet's transfer options state it; what rides along."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pdctl.check.words import Word
from pdctl.derive.connectors import Connector, mover, read
from pdctl.derive.flags import transfer_of
from pdctl.flags import dialect, load, read_words
from pdctl.fleet import LoadedFleet, Pool

#: The connector that vLLM puts in the place of any other where `--kv-offloading-size` is given, by the backend's name
#: (0.32.0 config/vllm.py:1099, and so in each release from 0.24 on).
OFFLOADS: Final[Mapping[str, str]] = {"native": "OffloadingConnector", "lmcache": "LMCacheMPConnector"}
OFFLOADING: Final = ("--kv-offloading-size", "--kv-offloading-backend")
#: Flags by which an engine keeps KV elsewhere besides, and what that is called.
BESIDE: Final[Mapping[str, str]] = {
    "--enable-hierarchical-cache": "HiCache",
    "--enable-lmcache": "LMCache",
    "--enable-flexkv": "FlexKV",
}


def stated(loaded: LoadedFleet, pool: Pool) -> Connector | None:
    """The tree that the pool's own args name, else the fleet's options; None where it is left to pdctl.

    Where KV is offloaded by flags, vLLM runs that connector and no other.
    """
    if dialect(pool.engine or loaded.fleet.engine) != "vllm":
        return None
    spoken = read_words(load("vllm"), pool.args)
    size, backend = (spoken.value(flag) for flag in OFFLOADING)
    if size is not None:
        return Connector(OFFLOADS.get(backend or "native", "OffloadingConnector"), "kv_both")
    own = transfer_of(pool.args)
    config: Mapping[str, Any] = own if own is not None else loaded.fleet.transfer.options
    return read(config)


def notes(name: str, tree: Connector | None, words: Sequence[Word]) -> Iterator[str]:
    """What is carried and not judged, and a connector that pdctl does not know."""
    moves = mover(tree) if tree is not None else None
    beside = [leaf.name for leaf in tree.leaves() if leaf is not moves] if tree is not None else []
    beside += [BESIDE[flag] for word in words for flag in word.names if flag in BESIDE]
    if beside and (moves is not None or tree is None):
        yield f"{name}: {', '.join(dict.fromkeys(beside))} beside the transfer: carried, not judged"
    if moves is not None and moves.kind.does == "unknown":
        yield f"{name}: {moves.name} is no connector that pdctl knows: judged as one of transfer.backend"
