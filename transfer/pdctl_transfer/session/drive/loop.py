"""An event loop in a daemon thread, and channels of messages on it.

All state of a peer is touched by its loop thread only: no locks, and every race is an order of two callbacks. Work is
done by `workers.py` and comes back through `call`. The core lives in other people's processes: the loop is a selector
loop whatever event loop policy they have set, and a stall of the process is measured, so that nobody else is blamed.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from pdctl_transfer.session.wire.frames import FrameError, Framer
from pdctl_transfer.session.wire.messages import PROTOCOL, AnyMessage, Beat, Message, decode, encode

TICK_S: Final = 0.5
"""How often the loop looks whether it has been kept from running."""


class Loop:
    """A thread that runs an event loop until `stop`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.SelectorEventLoop()
        self._stopping = False
        self._ending = threading.Lock()
        self.stalled_s = 0.0
        """Seconds in which the loop should have run and was not let: somebody held the GIL, or the process stood."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._loop.call_soon(self._tick, time.monotonic())
        self._thread.start()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(_cancel_all())
        self._loop.close()

    def _tick(self, due: float) -> None:
        late = time.monotonic() - due
        if late > TICK_S:
            self.stalled_s += late
        self._loop.call_later(TICK_S, self._tick, time.monotonic() + TICK_S)

    def call(self, function: Callable[..., object], *args: object) -> bool:
        """Run it on the loop thread, soon; what returns True runs. False once the loop was told to stop."""
        with self._ending:  # else a loop that closes meanwhile is woken by a byte into whatever has its descriptor now
            if self._stopping:
                return False
            self._loop.call_soon_threadsafe(function, *args)
            return True

    @property
    def inside(self) -> bool:
        """Whether this is the loop's own thread."""
        return threading.current_thread() is self._thread

    def ask(self, function: Callable[[], Any], timeout: float = 10.0) -> Any:
        """Run it on the loop thread and return its result."""
        done = threading.Event()
        box: list[Any] = []

        def run() -> None:
            try:
                box.append(function())
            finally:
                done.set()

        if not self.call(run) or not done.wait(timeout) or not box:
            raise RuntimeError(f"{self._thread.name}: no answer")
        return box[0]

    def soon(self, function: Callable[..., object], *args: object) -> None:
        """Run it on the loop thread after what waits there; call from the loop thread."""
        self._loop.call_soon(function, *args)

    def later(self, seconds: float, function: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        """Run it on the loop thread after `seconds`; call from the loop thread."""
        return self._loop.call_later(seconds, function, *args)

    def connect(
        self, host: str, port: int, secret: bytes | None, timeout: float, owner: "Owner | None" = None
    ) -> "Channel":
        """A channel that opens in the background; its owner hears when it did or did not. From the loop thread."""
        channel = Channel(self, owner or _Nobody(), secret, connector=True)
        channel.task = self._loop.create_task(self._open(channel, host, port, timeout))
        return channel

    async def _open(self, channel: "Channel", host: str, port: int, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._loop.create_connection(lambda: channel, host, port)
        except (OSError, TimeoutError) as error:
            refused = isinstance(error, ConnectionRefusedError)
            channel.fail(f"{host}:{port}: {error or 'timed out'}", refused=refused)

    def adopt(self, sock: socket.socket, channel: "Channel") -> None:
        """Attach an accepted socket."""
        channel.task = self._loop.create_task(self._adopt(sock, channel))

    async def _adopt(self, sock: socket.socket, channel: "Channel") -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: channel, sock)
        except OSError as error:
            channel.fail(str(error))

    def add_reader(self, sock: socket.socket, function: Callable[[], None]) -> None:
        """Call it whenever the socket can be read."""
        self._loop.add_reader(sock, function)

    def remove_reader(self, sock: socket.socket) -> None:
        """Undo `add_reader`."""
        self._loop.remove_reader(sock)

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread; from the loop thread itself, after what is under way. Safe to call twice."""
        with self._ending:
            if not self._stopping:
                self._stopping = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        if not self.inside:
            self._thread.join(timeout)


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Owner(Protocol):
    """Who a channel reports to; all calls come on the loop thread."""

    def opened(self, channel: "Channel") -> None:
        """The other side has proven that it speaks this protocol with this secret; messages can be sent."""
        ...

    def received(self, channel: "Channel", message: AnyMessage) -> None:
        """A message came."""
        ...

    def lost(self, channel: "Channel", cause: str) -> None:
        """The channel is over, once."""
        ...


class Channel(asyncio.Protocol):
    """One connection that carries messages. Anything malformed ends it; that harms nobody but its sender."""

    def __init__(self, loop: Loop, owner: Owner, secret: bytes | None, *, connector: bool) -> None:
        self.loop = loop
        self.owner = owner
        self.heard = time.monotonic()
        self.refused = False
        """The address answered that nobody listens there."""
        self.code = ""
        """Why the channel was refused, where it was: PD4007, PD4008."""
        self.task: object = None
        self._framer = Framer(secret, connector=connector, protocol=PROTOCOL)
        self._transport: asyncio.Transport | None = None
        self._over = False
        self._connector = connector
        self._proven = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"a stream was expected, not {type(transport).__name__}")
        if self._over:
            transport.abort()
            return
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.write(self._framer.preamble)

    def data_received(self, data: bytes) -> None:
        was_open = self._framer.open
        try:
            bodies = self._framer.feed(data)
            messages = [decode(body) for body in bodies]
        except FrameError as error:
            self.code = error.code
            self.fail(error.message)
            return
        except msgspec.MsgspecError as error:
            self.code = "PD4007"
            self.fail(f"a message that is not of this protocol: {error}")
            return
        self.heard = time.monotonic()
        if self._framer.open and not was_open and not self._connector:
            self.send(Beat())  # proves this side's secret before the connector says anything
        if messages and not self._proven:
            self._proven = True
            if self._connector:
                self.send(Beat())  # a first frame must be small, and the owner's first message may not be
            self.owner.opened(self)
        for message in messages:
            if self._over:
                return
            self.owner.received(self, message)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(str(exc) if exc else "closed by the other side")

    def send(self, message: Message) -> None:
        """Send, or drop it where the channel is over: the owner was told or will be."""
        if self._transport is not None and not self._over and self._framer.open:
            self._transport.write(self._framer.frame(encode(message)))

    def fail(self, cause: str, *, refused: bool = False) -> None:
        """End the channel and tell the owner, once."""
        if self._over:
            return
        self._over = True
        self.refused = refused
        if self._transport is not None:
            self._transport.abort()
        self.owner.lost(self, cause)

    def close(self) -> None:
        """End the channel after what was sent; the owner is not told."""
        self._over = True
        if self._transport is not None:
            self._transport.close()

    @property
    def host(self) -> str:
        """The other side's address, empty where there is none."""
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        return str(name[0]) if isinstance(name, tuple) else ""

    @property
    def greeted(self) -> bool:
        """Whether the other side has said anything that a peer says."""
        return self._framer.open

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._over


class _Nobody:
    """Owner of a channel until its link takes it over."""

    def opened(self, channel: Channel) -> None:
        """Nothing."""

    def received(self, channel: Channel, message: AnyMessage) -> None:
        """Nothing."""

    def lost(self, channel: Channel, cause: str) -> None:
        """Nothing."""
