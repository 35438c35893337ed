"""The reference engine, as its command line starts it, in a process whose control connections can be reset on demand.

python -m tests.integration.reference.cuttable --role prefill …
"""

import os
import socket
import sys
import threading

from pdctl.engines.reference.__main__ import main
from pdctl.engines.reference.arguments import parse_arguments
from tests.integration.transfer.sockets import break_connections, control_ports


def address(pid: int) -> str:
    """Where the process with this number is asked: an abstract Unix socket, gone with it."""
    return f"\0pdctl-cuttable-{pid}"


def reset_one(pid: int) -> bool:
    """Have a control connection of that engine reset. False where it has none, or is not there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(1.0)
        try:
            asked.connect(address(pid))
            return asked.recv(1) == b"1"
        except OSError:
            return False


def serve(listener: socket.socket, http_port: int) -> None:
    """Reset one connection for each caller."""
    while True:
        caller, _ = listener.accept()
        with caller:
            caller.sendall(b"1" if break_connections("reset", control_ports() - {http_port}, limit=1) else b"0")


if __name__ == "__main__":
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address(os.getpid()))
    listener.listen()
    port = parse_arguments(sys.argv[1:]).port
    threading.Thread(target=serve, args=(listener, port), daemon=True).start()
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
