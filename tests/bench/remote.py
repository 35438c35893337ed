"""Nodes in processes of their own, and pairs of them."""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from tests.bench.shape import Role, Shape

ROOT = Path(__file__).parents[2]
LIMIT_S = 180.0
ENVIRONMENT = {"MC_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}

rooms = itertools.count(1)
Pages = Sequence[int]


class Remote:
    """A `Node` in a process. `core`: the folder to import `pdctl_transfer` from, where it is not the usual one."""

    def __init__(
        self, role: Role, shape: Shape, registry: tuple[str, int] | None = None, core: Path | None = None
    ) -> None:
        self.shape = shape
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
        self._pipe, theirs = Pipe()
        path = [str(core)] if core else []
        path += [str(ROOT), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.node", str(theirs.fileno())],
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            pass_fds=[theirs.fileno()],
            stderr=self._log,
        )
        theirs.close()
        self._pipe.send((role, shape, registry))

    def post(self, name: str, *args: Any) -> None:
        """Begin a call; one at a time."""
        self._pipe.send((name, args))

    def result(self) -> Any:
        """What the call returned, or the first: that the node stands."""
        try:
            assert self._pipe.poll(LIMIT_S), f"no answer in {LIMIT_S:g} s"
            ok, value = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            ok, value = False, "the process ended"
        if not ok:
            self._log.seek(0)
            raise RuntimeError(f"{value}\n{self._log.read()[-4000:].decode(errors='replace')}")
        return value

    def call(self, name: str, *args: Any) -> Any:
        """Run a method of the node."""
        self.post(name, *args)
        return self.result()

    def freeze(self) -> None:
        """Stop the process where it is."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it; closing Mooncake takes long."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()
        self._log.close()


class Pair:
    """A prefill and a decode side whose links stand, and how to move requests between them."""

    def __init__(self, prefill: Remote, decode: Remote) -> None:
        self.prefill, self.decode = prefill, decode

    def opened(self, theirs: Sequence[Pages]) -> list[int]:
        """New rooms for these pages of decode, known to both sides."""
        made = list(itertools.islice(rooms, len(theirs)))
        self.decode.call("expect", made, theirs)
        self.prefill.call("ready", made)
        return made

    def move(self, ids: Pages, theirs: Pages) -> tuple[float, float]:
        """Wall and CPU seconds of the sender, of one request."""
        made = self.opened([theirs])
        took: tuple[float, float] = self.prefill.call("timed", made, [ids])
        self.decode.call("wait", made)
        return took

    def seconds(self, ids: Pages, theirs: Pages) -> float:
        """Wall seconds of one request."""
        return self.move(ids, theirs)[0]

    def asynchronous(self, ids: Pages, theirs: Pages) -> float:
        """Seconds of the fabric's own call for its blocks."""
        seconds: float = self.prefill.call("asynchronous", ids, theirs)
        return seconds

    def synchronous(self, ids: Pages, theirs: Pages) -> float:
        """Seconds of Mooncake's synchronous call for its blocks."""
        seconds: float = self.prefill.call("synchronous", ids, theirs)
        return seconds

    def equal(self, nbytes: int, block: int) -> float:
        """Seconds of the fabric's own call for so many bytes in blocks of one size."""
        seconds: float = self.prefill.call("equal", nbytes, block)
        return seconds


@contextmanager
def started(prefill: Shape, *decodes: Shape, core: Path | None = None) -> Iterator[list[Pair]]:
    """One prefill side and some decode sides; memory has been touched, links stand. Bare calls go to the first."""
    nodes = [Remote("prefill", prefill, core=core)]
    try:
        nodes[0].result()
        at = nodes[0].call("registry")
        nodes += [Remote("decode", decode, at, core) for decode in decodes]
        for node in nodes[1:]:
            node.result()
        nodes[0].call("know", decodes[0], nodes[1].call("ends"))
        if core is not None:
            found = {Path(node.call("core")) for node in nodes}
            assert found == {core}, f"asked for the core of {core}, got {found}"
        pairs = [Pair(nodes[0], node) for node in nodes[1:]]
        for pair in pairs:
            everything = list(range(min(prefill.items, pair.decode.shape.items)))
            pair.move([0], [0])
            pair.move(everything, everything)
        yield pairs
    finally:
        for node in nodes:
            node.kill()


@contextmanager
def pair(src: int, dst: int, core: Path | None = None, **shape: int) -> Iterator[Pair]:
    """A pair of TP `src` and `dst`, else alike."""
    with started(Shape(src, **shape), Shape(dst, **shape), core=core) as (made,):
        yield made
