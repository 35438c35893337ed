"""The guard: a small process that keeps one unit running, and outlives the command that started it.

    python -m pdctl.launch.guard FOLDER READY_FD   < unit as JSON

It leads a session of its own, adopts whatever its unit's processes leave behind (PR_SET_CHILD_SUBREAPER), restarts the
unit with back-off when it ends, and on SIGTERM ends the whole tree, then itself. If the guard itself is killed, the
kernel kills the unit's main process with it (PR_SET_PDEATHSIG); what else there is stays in the unit's cgroup, where
one can be made, and `stop` finds it there. The unit writes into a pipe, the guard from there into the log, which is its
own standard error. The unit comes by standard input, so that the values of its variables never reach a disk.
"""

import ctypes
import errno
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from pdctl.launch import cgroup, process
from pdctl.launch.base import Unit
from pdctl.launch.outlet import Outlet, RotatingLog, said
from pdctl.launch.record import Exit, UnitRecord, write

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_WATCHED = {*_STOP, signal.SIGCHLD}

STEADY_S = 60.0
"""A unit that ran this long counts as well again: the next failure is the first of a new row."""
ORPHAN_GRACE_S = 2.0
KILL_S = 10.0


class Guard:
    """One unit, kept running until told to stop or until it fails too often."""

    def __init__(self, folder: Path, unit: Unit, ready_fd: int) -> None:
        self.folder = folder
        self.unit = unit
        self.ready_fd: int | None = ready_fd
        self.log = RotatingLog(folder / "unit.log", sys.stderr.fileno(), unit.log_bytes)
        self.outlet = Outlet(self.log)
        self.signals = _signals()
        self.poll = select.poll()
        self.poll.register(self.signals, select.POLLIN)
        self.poll.register(self.outlet.reader, select.POLLIN)
        self.cgroup = cgroup.make(str(folder))
        self.stopping = False
        self.failures = 0
        me, here = process.find(os.getpid()), process.here()
        assert me is not None
        self.record = UnitRecord(
            unit.name,
            unit.role,
            "stopped",
            unit.digest,
            here.boot,
            guard_pid=me.pid,
            guard_started=me.started,
            namespace=here.namespace,
            cgroup=str(self.cgroup) if self.cgroup else None,
        )

    def run(self) -> None:
        """Until stopped or given up: start, wait for the end, clear what is left, wait, start again."""
        try:
            while self._run_once():
                self.record = _changed(self.record, restarts=self.record.restarts + 1)
        finally:
            if self.cgroup:
                cgroup.remove(self.cgroup)

    def _run_once(self) -> bool:
        """Run the unit to its end; whether it is to be started again."""
        began = time.monotonic()
        pid = self._spawn()
        exit_ = self._watch(pid)
        self._end_tree(pid, self.unit.grace_s if exit_ is None else ORPHAN_GRACE_S)
        if not self.stopping:
            self.failures = 1 if time.monotonic() - began >= STEADY_S else self.failures + 1
            if self.failures > len(self.unit.backoff_s):
                self._note("failed", pid=None, started=None)
                return False
            self._note("restarting", pid=None, started=None)
            if self._pause(self.unit.backoff_s[self.failures - 1]):
                return True
        self._note("stopped", pid=None, started=None)
        return False

    def _spawn(self) -> int:
        pid = os.fork()
        if pid == 0:
            self._become_unit()
        child = process.find(pid)
        fault = self._note("running", pid=pid, started=child.started if child else 0)
        if self.ready_fd is not None:
            os.write(self.ready_fd, str(fault).encode())
            os.close(self.ready_fd)
            self.ready_fd = None
        return pid

    def _become_unit(self) -> NoReturn:
        """In the child: a session of its own, tied to the guard's life, then the unit's program."""
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != self.record.guard_pid:
                os._exit(0)  # it died before the line above
            self._take_its_place()
            if self.unit.cwd:
                os.chdir(self.unit.cwd)
            # who sets its own title shall not overwrite its environment, where the mark is
            environment = {"SPT_NOENV": "1", **os.environ, **self.unit.env}
            os.execvpe(self.unit.argv[0], self.unit.argv, environment)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            os.write(2, said(f"cannot start {self.unit.argv[0]}: {reason}"))
        finally:
            os._exit(127)

    def _take_its_place(self) -> None:
        """In the child: its cgroup, the pipe to write to, and signals as a program expects them."""
        os.dup2(self.outlet.writer, 1)
        os.dup2(self.outlet.writer, 2)
        if self.cgroup:
            try:
                cgroup.enter(self.cgroup)
            except OSError as error:
                os.write(2, said(f"runs outside of its cgroup: {error.strerror}"))
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)

    def _watch(self, pid: int) -> Exit | None:
        """Wait for the end of the unit's main process, reaping orphans meanwhile; None if told to stop before."""
        while True:
            exit_ = self._reap(pid)
            if exit_ is not None:
                self.record = _changed(self.record, last_exit=exit_)
                self.outlet.pass_on()  # its last words stand before ours
                self.log.say(f"{self.unit.name} (pid {pid}) ended: {exit_}")
                return exit_
            self._next_signal(None)
            if self.stopping:
                self._note("stopping")
                return None

    def _reap(self, main: int) -> Exit | None:
        """Collect every child that has ended; how the main one ended, if it was among them."""
        exit_ = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return exit_
            if pid == 0:
                return exit_
            if pid == main:
                exit_ = _how(os.waitstatus_to_exitcode(status))

    def _end_tree(self, main: int, grace_s: float) -> None:
        """SIGTERM to the main process, once it is gone to what it left, and SIGKILL to all that outlasts the grace."""
        shared = process.shared_memory(self._left(main))
        self._end_processes(main, grace_s)
        process.unlink_unused(shared)
        self.outlet.pass_on()

    def _end_processes(self, main: int, grace_s: float) -> None:
        told: set[int] = set()
        ends = time.monotonic() + grace_s
        while left := self._left(main):
            late = time.monotonic() - ends
            if late > KILL_S:
                self.log.say(f"cannot be killed: {', '.join(str(item.pid) for item in left)}")
                return
            if late >= 0 and self.cgroup:
                cgroup.kill(self.cgroup)
            heads = [item for item in left if item.pid == main] or left
            for item in left if late >= 0 else heads:
                if late >= 0:
                    process.send(item, signal.SIGKILL)
                elif item.pid not in told:
                    told.add(item.pid)
                    process.send(item, signal.SIGTERM)
                    process.send(item, signal.SIGCONT)
            self._next_signal(0.05)

    def _left(self, main: int) -> list[process.Process]:
        exit_ = self._reap(main)
        if exit_ is not None:
            self.record = _changed(self.record, last_exit=exit_)
        inside = cgroup.members(self.cgroup) if self.cgroup else []
        left = {item.pid: item for item in process.descendants(os.getpid())}
        return [*left.values(), *(item for pid in inside if pid not in left and (item := process.find(pid)))]

    def _pause(self, seconds: float) -> bool:
        """Wait; False if told to stop meanwhile."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0 and not self.stopping:
            self._next_signal(left)
        return not self.stopping

    def _next_signal(self, timeout_s: float | None) -> None:
        """Wait for a child's end or a word to stop, and pass on what the unit writes meanwhile."""
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if ends is None else max(ends - time.monotonic(), 0) * 1000
            ready = [descriptor for descriptor, _ in self.poll.poll(left)]
            if self.outlet.reader in ready:
                self.outlet.pass_on()
            if self.signals in ready:
                number = int.from_bytes(os.read(self.signals, 128)[:4], sys.byteorder)
                self.stopping = self.stopping or number in _STOP
                return
            if left is not None and left <= 0:
                return

    def _note(self, state: str, **changes: object) -> int:
        """Record a change of state; 0, or errno. A full disk does not end the unit; a folder that is gone does."""
        self.record = _changed(self.record, state=state, since=time.time(), **changes)
        try:
            write(self.folder / "state.json", self.record)
        except OSError as error:
            self.log.say(f"cannot record {state}: {error.strerror}")
            self.stopping = self.stopping or not self.folder.exists()
            return error.errno or errno.EIO
        return 0


def _how(code: int) -> Exit:
    """How a process ended, from its exit code: below 0 the signal that killed it, of which not all have names."""
    if code >= 0:
        return Exit(code, None, time.time())
    names = {number.value: number.name for number in signal.Signals}
    return Exit(None, names.get(-code, f"signal {-code}"), time.time())


def _changed(record: UnitRecord, **changes: object) -> UnitRecord:
    from msgspec.structs import replace

    return replace(record, **changes)


def _signals() -> int:
    """A descriptor that the watched signals, which are blocked, are read from; 128 bytes each, the number first."""
    mask = sum(1 << (number - 1) for number in _WATCHED).to_bytes(128, "little")
    descriptor: int = ctypes.CDLL(None, use_errno=True).signalfd(-1, mask, os.O_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "signalfd")
    return descriptor


def _prctl(option: int, value: int | bytes) -> None:
    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0)


def main(folder: str, ready_fd: int) -> None:
    """Read the unit from standard input and guard it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as a caller may have it, it would not be told
    os.set_inheritable(ready_fd, False)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_NAME, b"pdctl-guard")
    document = json.load(sys.stdin)
    unit = Unit(**{**document, "argv": tuple(document["argv"])})
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    Guard(Path(folder), unit, ready_fd).run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
