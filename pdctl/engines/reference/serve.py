"""An engine in its process: bind first, then build, serve, and leave in order on a signal."""

import logging
import signal
import socket
import threading
from types import FrameType

import uvicorn

from pdctl.engines.reference.engine import Engine
from pdctl.engines.reference.options import EngineOptions
from pdctl.engines.reference.scheduler import Scheduler
from pdctl.engines.reference.server.app import make_app
from pdctl.errors import PdctlError

log = logging.getLogger("pdctl.engines.reference")


class PortError(PdctlError):
    """A port that cannot be had."""

    code = "PD3040"


def serve(options: EngineOptions) -> None:
    """Serve until SIGTERM or SIGINT. Raises PortError, InputError and ConfigError before anything is announced."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s  %(message)s")
    listener = bind(options.host, options.port)
    scheduler = build(options)
    scheduler.start()
    config = uvicorn.Config(
        make_app(scheduler), log_level="warning", lifespan="off", timeout_graceful_shutdown=1, access_log=False
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal that ended it once more when it is done; by then there is nothing left to end.
        signal.signal(number, lambda *_: None)
    log.info("%s serves %s on %s:%d", options.role, scheduler.engine.name, *listener.getsockname()[:2])
    with listener:
        Server(config, scheduler).run(sockets=[listener])
    scheduler.close()
    log.info("stopped")


class Server(uvicorn.Server):
    """Ends what is running as soon as it is told to stop, so that open streams end and nobody is waited for."""

    def __init__(self, config: uvicorn.Config, scheduler: Scheduler) -> None:
        super().__init__(config)
        self._scheduler = scheduler

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal interrupts anything, also a holder of the scheduler's lock: so another thread tells it."""
        threading.Thread(target=self._scheduler.stop, name="reference-stop").start()
        super().handle_exit(sig, frame)


def build(options: EngineOptions) -> Scheduler:
    """The engine, and its side of a pair if it has one. Raises FabricError, InputError and ConfigError."""
    engine = Engine(options)
    if options.role == "aggregate":
        return Scheduler(engine)
    from pdctl.engines.reference.link import make_fabric, make_link, session_options

    session = session_options(options)
    return Scheduler(engine, make_link(engine, make_fabric(options), session))


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; PD3040 if the port is taken or the address is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise PortError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="stop what listens there, or give another --port (0 takes a free one)",
        ) from None
    listener.listen(128)
    return listener
