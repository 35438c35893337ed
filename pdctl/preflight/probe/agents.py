"""Agents as the controller sees them: started over HostExec with the transfer core in a zip, asked by lines."""

import io
import json
import os
import signal
import subprocess
import tempfile
import threading
import zipfile
from importlib.resources import files
from typing import Any

from pdctl.errors import HostError
from pdctl.hosts.exec import host_exec
from pdctl.preflight.wants import Want
from pdctl.python import code, environment

# everything that may be needed is imported before the zip goes away
BOOTSTRAP = """\
import os, runpy, sys, tempfile
size = int(sys.stdin.buffer.readline())
handle, path = tempfile.mkstemp(suffix=".zip")
os.write(handle, sys.stdin.buffer.read(size))
sys.path.insert(0, path)
import pdctl_transfer.errors, pdctl_transfer.fabric.base, pdctl_transfer.fabric.evidence
import pdctl_transfer.fabric.mooncake, pdctl_transfer.fabric.nixl
import pdctl_probe_agent
os.unlink(path)
pdctl_probe_agent.main()
"""


class AgentError(Exception):
    """An agent that did not start, answer in time, or do what it was asked."""


class Agent:
    """One agent process on a host. Not for several threads at once."""

    def __init__(self, want: Want, address: str) -> None:
        self.want = want
        self.address = address
        self.opened: dict[str, Any] = {}
        # a file, not a pipe that nobody empties
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        try:
            host = host_exec(self.want.host)
            process = host.start(code(self.want.python, BOOTSTRAP), env=environment(_env(self.want)), stderr=self._log)
        except HostError as error:
            raise AgentError(error.message) from error
        core = archive()
        try:
            assert process.stdin is not None
            process.stdin.write(b"%d\n" % len(core) + core)
            process.stdin.flush()
        except OSError as error:
            raise AgentError(self._why_it_ended(process)) from error
        return process

    def open(self, src_bytes: int, dst_bytes: int, timeout: float) -> None:
        """Start its fabric, as the fleet file asks for it."""
        want = self.want
        self.opened = self.ask(
            timeout,
            do="open",
            backend=want.backend,
            protocol=want.protocol,
            devices=list(want.devices),
            host=self.address,
            src_bytes=src_bytes,
            dst_bytes=dst_bytes,
        )

    def ask(self, timeout: float, **command: Any) -> dict[str, Any]:
        """Send a command, wait for its answer. Raises AgentError; after a timeout the agent is gone."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(timeout, process.kill)
        late.start()
        try:
            process.stdin.write(json.dumps(command).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = b""
        finally:
            late.cancel()
        if not line:
            process.wait()
            timed_out = late.finished.is_set() and process.returncode == -signal.SIGKILL
            raise AgentError(f"no answer within {timeout:g} s" if timed_out else self._why_it_ended(process))
        answer: dict[str, Any] = json.loads(line)
        if answer.get("fault"):
            raise AgentError(answer["fault"])
        return answer

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def log(self) -> str:
        """What its libraries printed."""
        # the process writes at an offset that a seek here would move
        handle = self._log.fileno()
        return os.pread(handle, os.fstat(handle).st_size, 0).decode("utf-8", "replace")

    def close(self) -> None:
        """End it; it goes by itself when its input ends."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._log.close()

    def _why_it_ended(self, process: "subprocess.Popen[bytes]") -> str:
        status = process.wait()
        lines = [line for line in self.log().splitlines() if line.strip()]
        return f"{self.want.python} ended with status {status}: {lines[-1] if lines else 'it said nothing'}"


def _env(want: Want) -> dict[str, str]:
    """The pool's variables, and what keeps UCX to its devices where an engine would tell NIXL so."""
    names = [name if ":" in name else f"{name}:1" for name in want.devices]
    chosen = {"UCX_NET_DEVICES": ",".join(names)} if names and (want.backend, want.protocol) == ("nixl", "rdma") else {}
    return {**chosen, **want.env}


def archive() -> bytes:
    """The transfer core and the agent as one zip that Python imports from."""
    from pdctl.engines.shipping import contents

    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as zipped:
        for path, data in contents().items():
            if path.endswith(".py") and "/plugins/" not in path:
                zipped.writestr(path, data)
        zipped.writestr("pdctl_probe_agent.py", files("pdctl.preflight.probe").joinpath("agent.py").read_bytes())
    return target.getvalue()
