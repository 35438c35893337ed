"""Running commands on hosts, and reading hosts so. The real OpenSSH client meets real hosts in tests/cluster."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl.errors import HostError
from pdctl.hosts.exec import SSH_OPTIONS, SshHost, ThisHost, host_exec, unreachable
from pdctl.preflight.collect import collect, read_software
from pdctl.preflight.snapshot import Unread
from pdctl.preflight.wants import this_host


def test_the_remote_shell_gets_every_word_whole():
    line = SshHost("h1", ["ssh"]).argv(["sh", "-c", 'echo "$HOME" && true'], {"A": "b c"})[-1]
    assert shlex.split(line) == ["env", "A=b c", "sh", "-c", 'echo "$HOME" && true']


def test_the_client_is_strict_and_asks_nothing():
    argv = SshHost("h1", ["ssh"]).argv(["true"])
    assert {"BatchMode=yes", "StrictHostKeyChecking=yes"} <= set(argv)
    assert len([word for word in argv if word == "-o"]) == len(SSH_OPTIONS)


def test_a_host_name_is_never_read_as_an_option():
    with pytest.raises(HostError, match="no host name"):
        host_exec("-oProxyCommand=touch /tmp/owned")


def test_this_machine_is_not_reached_by_ssh():
    assert all(isinstance(host_exec(name), ThisHost) for name in ("", "localhost", "127.0.0.1"))


@pytest.mark.parametrize(
    ("stderr", "says"),
    [
        ("Host key verification failed.", "host key is not known"),
        ("root@h1: Permission denied (publickey).", "refused the login"),
        ("ssh: Could not resolve hostname h1: Name or service not known", "does not resolve"),
        ("ssh: connect to host h1 port 22: Connection refused", "nothing listens"),
        ("ssh: connect to host h1 port 22: Connection timed out", "does not answer"),
        ("something else", "something else"),
    ],
)
def test_the_clients_last_words_become_a_cause_and_something_to_do(stderr: str, says: str):
    error = unreachable("h1", stderr)
    assert says in error.message
    assert error.hint


def test_a_command_that_hangs_is_given_up():
    with pytest.raises(HostError, match="did not end within"):
        ThisHost().run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.2)


def test_a_program_that_is_not_there_is_named():
    with pytest.raises(HostError, match="no program /no/such/python"):
        read_software("", "/no/such/python")


@pytest.mark.code("PD2201")
def test_a_client_that_fails_leaves_the_host_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    client = tmp_path / "ssh"
    client.write_text("#!/bin/sh\necho 'ssh: connect to host h1 port 22: Connection refused' >&2\nexit 255\n")
    client.chmod(0o755)
    monkeypatch.setenv("PDCTL_SSH", str(client))
    one = this_host("mooncake", "tcp", (), None)
    snapshot = collect([type(one)(**{**{f: getattr(one, f) for f in one.__struct_fields__}, "host": "h1"})])
    assert isinstance(snapshot.hosts["h1"], Unread)
    assert "nothing listens" in snapshot.hosts["h1"].reason


def test_this_hosts_own_facts_are_those_of_other_tools():
    facts = collect([this_host("mooncake", "tcp", (), None)]).hosts[""]
    assert not isinstance(facts, Unread)
    shell = subprocess.run(["sh", "-c", "hostname; cat /proc/sys/net/ipv4/ip_local_port_range"], capture_output=True)
    name, ports = shell.stdout.decode().splitlines()
    assert facts.host.name == name
    assert facts.port_range == tuple(map(int, ports.split()))
    low, high = facts.clock_offset
    assert low <= 0 <= high, "a clock does not differ from itself"


def test_what_an_interpreter_would_load_is_what_it_has():
    import msgspec

    software = read_software("", sys.executable)
    assert software.version("torch") is None or software.torch_cuda is not None
    assert software.executable == sys.executable
    assert msgspec.json.encode(software)


def test_a_library_that_links_what_is_not_there_is_named(tmp_path: Path):
    """An extension module that is installed here, with one soname written over by another of its length."""
    source = next(path for path in _extension_modules() if b"libc.so.6\0" in path.read_bytes())
    package = tmp_path / "mooncake"
    package.mkdir()
    (package / "engine.so").write_bytes(source.read_bytes().replace(b"libc.so.6\0", b"libc.so.9\0"))
    script = Path(read_software.__globals__["__file__"]).with_name("software.py").read_text()
    done = subprocess.run(
        [sys.executable, "-"], input=script.encode(), capture_output=True, env={"PYTHONPATH": str(tmp_path)}
    )
    assert b'"mooncake/engine.so": ["libc.so.9"]' in done.stdout, done.stderr


def _extension_modules() -> list[Path]:
    import msgspec
    import numpy

    return [path for module in (msgspec, numpy) for path in sorted(Path(module.__file__).parent.rglob("*.so"))]
