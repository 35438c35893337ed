"""Reads the hosts of a fleet, all at once: one capture a host, one look into each engine's Python."""

import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import TypeVar

import msgspec

from pdctl.errors import HostError
from pdctl.hosts.exec import HostExec, host_exec
from pdctl.preflight.facts import HostFacts, Software, facts_of
from pdctl.preflight.snapshot import Snapshot, Unread
from pdctl.preflight.wants import RouterWant, Want
from pdctl.python import fed
from pdctl_topology import Capture, CaptureTree, read_host

AT_ONCE = 32
"""Hosts read at the same time: each costs a client process here."""
TIMEOUT = 60.0

T = TypeVar("T")


class _Document(Capture, frozen=True):
    """What the capture script prints."""

    shared_memory: int | None = None
    own_addresses: tuple[str, ...] = ()
    clock: tuple[float, float] = (0.0, 0.0)
    """When it started and ended, by its own clock."""


def collect(wants: Iterable[Want], router: RouterWant | None = None, *, software: bool = True) -> Snapshot:
    """A snapshot of every host that is asked for. What cannot be read is in it as such; nothing is raised.

    software: look into the engines' Pythons too.
    """
    wants = tuple(wants)
    here = [""] if router is not None else []
    hosts = list(dict.fromkeys([*here, *(want.host for want in wants)]))
    pythons = list(dict.fromkeys((want.host, want.python) for want in wants if software))
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        captures = [pool.submit(_unless_unread, read_facts, host) for host in hosts]
        programs = [pool.submit(_unless_unread, read_software, *key) for key in pythons]
        return Snapshot(
            wants,
            {host: future.result() for host, future in zip(hosts, captures, strict=True)},
            {key: future.result() for key, future in zip(pythons, programs, strict=True)},
            router,
        )


def _unless_unread(read: Callable[..., T], *args: str) -> T | Unread:
    try:
        return read(*args)
    except HostError as error:
        return Unread(error.message, error.hint)


def read_facts(name: str) -> HostFacts:
    """Run the capture script on a host. Raises HostError."""
    source = files("pdctl_topology").joinpath("capture.py").read_bytes()
    before = time.time()
    document = _script(host_exec(name), "python3" if name else sys.executable, source, _Document)
    after = time.time()
    return facts_of(
        name,
        read_host(CaptureTree(document)),
        document.files,
        shared_memory=document.shared_memory,
        own_addresses=document.own_addresses,
        # it started after `before` and ended before `after`
        clock_offset=(document.clock[1] - after, document.clock[0] - before),
    )


def read_software(name: str, python: str) -> Software:
    """Look into an engine's Python. Raises HostError."""
    source = files("pdctl.preflight").joinpath("software.py").read_bytes()
    return _script(host_exec(name), python, source, Software)


def _script(host: HostExec, python: str, source: bytes, answer: type[T]) -> T:
    where = host.name or "this host"
    done = host.run(fed(python), stdin=source, timeout=TIMEOUT)
    if done.status != 0:
        last = done.stderr.splitlines()[-1] if done.stderr else f"exit status {done.status}"
        raise HostError(f"{where}: {python}: {last}", hint="a Python 3.8 or later is needed there")
    try:
        return msgspec.json.decode(done.stdout, type=answer)
    except msgspec.DecodeError as error:
        raise HostError(f"{where}: {python} answered something else: {error}") from error
