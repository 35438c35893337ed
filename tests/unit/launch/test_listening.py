"""What a process listens on, declared or not."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pdctl.launch.listening import Listener, listeners, table
from pdctl.launch.state import UnitEntry
from pdctl.up.opened import PortView, open_to_others, ports_of

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0
   1: 00000000:3CCD 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1 0 100 0 0 10 0
   2: 0100007F:7530 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 13 1 0 100 0 0 10 0
"""
TCP6 = """\
  sl  local_address                         remote_address                        st ...
   0: 00000000000000000000000000000000:3ED2 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 21 1 0 100 0 0 10 0
   1: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 22 1 0 100 0 0 10 0
   2: 0000000000000000FFFF00000100007F:1F91 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 23 1 0 100 0 0 10 0
   3: 000080FE00000000FF00000001000000:1F92 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 24 1 0 100 0 0 10 0
"""
_CHILD = """\
import socket, subprocess, sys
own = socket.create_server(("127.0.0.1", 0))
wide = socket.create_server(("", 0))
print(own.getsockname()[1], wide.getsockname()[1], flush=True)
if len(sys.argv) > 1:
    subprocess.run([sys.executable, "-c", sys.argv[1]])
sys.stdin.read()
"""


def test_the_kernels_tables_are_read() -> None:
    assert list(table(TCP)) == [("11", Listener("127.0.0.1", 30000)), ("12", Listener("0.0.0.0", 15565))]
    assert list(table(TCP6)) == [
        ("21", Listener("::", 16082)),
        ("22", Listener("::1", 8080)),
        ("23", Listener("127.0.0.1", 8081)),
        ("24", Listener("fe80::ff:0:1", 8082)),
    ]
    assert list(table("")) == []
    opened = [listener.is_open for text in (TCP, TCP6) for _, listener in table(text)]
    assert opened == [False, True, True, False, False, True]


@pytest.fixture
def child() -> Iterator[tuple[int, list[int]]]:
    """A process with a child; each listens twice."""
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD, _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.pid, [int(port) for _ in range(2) for port in process.stdout.readline().split()]
        assert process.stdin is not None
        process.stdin.close()


def test_a_process_and_its_descendants(child: tuple[int, list[int]]) -> None:
    pid, (own, wide, childs, childs_wide) = child
    with socket.create_server(("127.0.0.1", 0)) as mine:
        found = listeners(pid)
        assert mine.getsockname()[1] not in [one.port for one in found]
    assert set(found) == {
        Listener("127.0.0.1", own), Listener("0.0.0.0", wide),
        Listener("127.0.0.1", childs), Listener("0.0.0.0", childs_wide),
    }  # fmt: skip


def test_nobody_listens_on_nothing() -> None:
    assert listeners(None) == ()
    assert listeners(2**22 - 1) == ()


def test_ports_are_named_and_open_ones_told() -> None:
    entry = UnitEntry("prefill-0", "prefill", "127.0.0.1", {"http": 1, "bootstrap": 2}, keys={"bootstrap": "secret"})
    found = (Listener("127.0.0.1", 1), Listener("0.0.0.0", 15565), Listener("::", 16082))
    ports = ports_of(entry, found)
    assert ports == (
        PortView("http", "127.0.0.1", 1, None),
        PortView("bootstrap", None, 2, "secret"),
        PortView("other", "0.0.0.0", 15565, None),
        PortView("other", "::", 16082, None),
    )
    assert open_to_others("prefill-0", ports) == ("prefill-0 0.0.0.0:15565 (PD2016)", "prefill-0 [::]:16082 (PD2016)")
    wide = (PortView("http", "10.0.0.1", 1, None), PortView("http", "10.0.0.1", 1, "api_key"))
    assert open_to_others("decode-0", wide) == ("decode-0 10.0.0.1:1 (PD2017)",)
    router = (PortView("http", "0.0.0.0", 1, "control_key"),)
    assert open_to_others("router", router) == ("router 0.0.0.0:1 (PD2018)",)
