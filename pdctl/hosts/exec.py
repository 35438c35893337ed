"""Running commands on a host: this machine, or another by the OpenSSH client.

The client is the operator's: their configuration, agent, jump hosts and known hosts, asked for nothing
(`BatchMode`), and strict about host keys. `PDCTL_SSH` replaces the command, as in `PDCTL_SSH="ssh -F lab/config"`.
"""

import logging
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Protocol

from msgspec import Struct

from pdctl.errors import HostError
from pdctl.python import environment
from pdctl.redact import hide_argv

_LOG = logging.getLogger(__name__)
LOCAL_NAMES = ("", "localhost", "127.0.0.1", "::1")
SSH_OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "ConnectTimeout=8",
    # a cut cable shows after some ten seconds, not after the kernel's quarter of an hour
    "ServerAliveInterval=3",
    "ServerAliveCountMax=3",
)
SSH_FAILED = 255


class Done(Struct, frozen=True):
    """A command that ended."""

    status: int
    stdout: bytes
    stderr: str


class HostExec(Protocol):
    """One host, as far as commands go."""

    @property
    def name(self) -> str:
        """As the fleet file has it; empty for this machine."""
        ...

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Done:
        """Run to the end. Raises HostError (PD2201) if the host cannot be reached or the time is over."""
        ...

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, stderr: IO[bytes] | int = subprocess.DEVNULL
    ) -> "subprocess.Popen[bytes]":
        """Start with both pipes open. The command should end when its standard input does."""
        ...


class ThisHost:
    """The machine that pdctl runs on."""

    name = ""

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Done:
        return _run(self.name or "this host", argv, environment(os.environ), stdin, timeout)

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, stderr: IO[bytes] | int = subprocess.DEVNULL
    ) -> "subprocess.Popen[bytes]":
        return _popen("this host", argv, environment(os.environ, env or {}), stderr)


class SshHost:
    """A machine that the OpenSSH client reaches under `name`."""

    def __init__(self, name: str, command: Sequence[str] | None = None) -> None:
        if name.startswith("-"):
            # the client would read it as an option
            raise HostError(f"{name!r} is no host name")
        self._name = name
        self._command = tuple(command or _ssh())

    @property
    def name(self) -> str:
        return self._name

    def argv(self, remote: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
        """The client's command line. The remote shell gets every word quoted."""
        options = [word for option in SSH_OPTIONS for word in ("-o", option)]
        words = [f"{name}={value}" for name, value in (env or {}).items()]
        line = shlex.join(["env", *words, *remote] if words else list(remote))
        return [*self._command, *options, "-T", "--", self._name, line]

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Done:
        done = _run(self._name, self.argv(argv), os.environ, stdin, timeout)
        if done.status == SSH_FAILED:
            raise unreachable(self._name, done.stderr)
        return done

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, stderr: IO[bytes] | int = subprocess.DEVNULL
    ) -> "subprocess.Popen[bytes]":
        return _popen(self._name, self.argv(argv, env), os.environ, stderr)


def _ssh() -> list[str]:
    """The client's command. Raises HostError (PD2201) where PDCTL_SSH is none."""
    given = os.environ.get("PDCTL_SSH") or "ssh"
    try:
        return shlex.split(given)
    except ValueError as error:
        raise HostError(f"PDCTL_SSH is no command: {str(error).lower()}", hint="quote it as a shell would") from error


def host_exec(name: str) -> HostExec:
    """How to reach the host that a fleet file names."""
    return ThisHost() if name in LOCAL_NAMES else SshHost(name)


def _run(host: str, argv: Sequence[str], env: Mapping[str, str], stdin: bytes, timeout: float) -> Done:
    _LOG.debug("runs for %s: %s", host, shlex.join(hide_argv(argv)))
    try:
        done = subprocess.run(list(argv), input=stdin, capture_output=True, timeout=timeout, check=False, env=dict(env))
    except FileNotFoundError as error:
        raise HostError(f"{host}: no program {argv[0]}", hint="install it, or correct PATH") from error
    except OSError as error:
        raise HostError(f"{host}: cannot run {argv[0]}: {(error.strerror or str(error)).lower()}") from error
    except subprocess.TimeoutExpired as error:
        raise HostError(f"{host}: {argv[0]} did not end within {timeout:g} s") from error
    return Done(done.returncode, done.stdout, done.stderr.decode("utf-8", "replace").strip())


def _popen(
    host: str, argv: Sequence[str], env: Mapping[str, str], stderr: IO[bytes] | int
) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=dict(env))
    except FileNotFoundError as error:
        raise HostError(f"{host}: no program {argv[0]}", hint="install it, or correct PATH") from error
    except OSError as error:
        raise HostError(f"{host}: cannot run {argv[0]}: {(error.strerror or str(error)).lower()}") from error


_CAUSES = (
    (
        "host key verification failed",
        "its host key is not known",
        "compare the key and add it to known_hosts: ssh {host}",
    ),
    ("permission denied", "it refused the login", "make `ssh {host} true` work without a question: a key, an agent"),
    (
        "could not resolve",
        "its name does not resolve",
        "correct the name in the fleet file, or add a Host to ssh_config",
    ),
    ("connection refused", "nothing listens on its ssh port", "start sshd there, or give the Port in ssh_config"),
    ("timed out", "it does not answer", "look at the cable, the address and the firewall"),
    ("no route to host", "there is no route to it", "look at the address and the network"),
)


def unreachable(host: str, stderr: str) -> HostError:
    """The OpenSSH client's last words as an error that says what to do."""
    low, named = stderr.lower(), shlex.quote(host)  # a hint is copied into a shell
    for mark, cause, hint in _CAUSES:
        if mark in low:
            return HostError(f"{host}: {cause}", hint=hint.format(host=named))
    last = stderr.splitlines()[-1] if stderr else "ssh ended with status 255 and said nothing"
    return HostError(f"{host}: {last}", hint=f"try `ssh {named} true`")
