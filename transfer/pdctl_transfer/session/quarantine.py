"""Buffers of failed requests whose source was lost from sight: when may they be used again?

A lost connection does not mean that nothing is written any more. So the rank is asked again under its address: it
answers that nothing is under way (`Settled`), or it is shown to be gone: nobody listens there, or another incarnation
does. What its sockets still held is given `linger_s` to land. A rank that cannot be reached at all (a cut network)
stays in quarantine; the count is a metric.
"""

from collections.abc import Callable
from typing import Final

from pdctl_transfer.plan import RankId
from pdctl_transfer.session.drive.client import Address
from pdctl_transfer.session.drive.loop import Loop
from pdctl_transfer.session.identity import Identity
from pdctl_transfer.session.life import Failure
from pdctl_transfer.session.link import Link
from pdctl_transfer.session.wire.messages import AnyMessage, Query, Settled

RETRY_S: Final = 0.5
Key = tuple[int, str]


class Quarantine:
    """Attempts by (address, incarnation) of the source that may still write them. Loop thread only."""

    def __init__(self, loop: Loop, me: Identity, release: Callable[[Key, RankId], None]) -> None:
        self._loop, self._me, self._release = loop, me, release
        self._suspects: dict[tuple[Address, str], dict[Key, RankId]] = {}
        self._links: dict[Link, tuple[Address, str]] = {}
        self._closed = False

    def add(self, address: Address, incarnation: str, key: Key, rank: RankId) -> None:
        """Keep this attempt until the source says, or shows by being gone, that nothing more will land."""
        suspect = (address, incarnation)
        if suspect not in self._suspects:
            self._suspects[suspect] = {}
            self._loop.later(0.0, self._look, suspect)
        self._suspects[suspect][key] = rank

    def close(self) -> None:
        """Stop looking."""
        self._closed = True
        for link in list(self._links):
            link.close()

    def _look(self, suspect: tuple[Address, str]) -> None:
        if self._closed or not self._suspects.get(suspect):
            self._suspects.pop(suspect, None)
            return
        options = self._me.options
        channel = self._loop.connect(*suspect[0], options.secret, options.handshake_s)
        self._links[Link(self._me, channel, self, connector=True)] = suspect

    def ready(self, link: Link) -> None:
        """Somebody is there: ask, if it is the same."""
        suspect = self._links[link]
        if link.incarnation != suspect[1]:
            self._gone(suspect)
            link.close()
            self._links.pop(link, None)
            return
        for room, attempt in self._suspects.get(suspect, {}):
            link.send(Query(room, attempt))

    def message(self, link: Link, message: AnyMessage) -> None:
        """One more that can be released."""
        suspect = self._links.get(link)
        if suspect is None or not isinstance(message, Settled):
            return
        key = (message.room, message.attempt)
        rank = self._suspects.get(suspect, {}).pop(key, None)
        if rank is not None:
            self._release(key, rank)
        if not self._suspects.get(suspect):
            self._suspects.pop(suspect, None)
            self._links.pop(link, None)
            link.close()

    def broken(self, link: Link, failure: Failure) -> None:
        """Nobody listens there: gone. Anything else: look again."""
        suspect = self._links.pop(link, None)
        if suspect is None:
            return
        if link.channel.refused or (link.incarnation and link.incarnation != suspect[1]):
            self._gone(suspect)
        else:
            self._loop.later(RETRY_S, self._look, suspect)

    def silent(self, link: Link, failure: Failure) -> None:
        """Keep waiting: its connection will tell."""

    def waiting_rooms(self, link: Link) -> tuple[int, ...]:
        """None: the requests have failed already."""
        return ()

    def refused_rooms(self, rooms: tuple[int, ...], failure: Failure) -> None:
        """None were named."""

    def _gone(self, suspect: tuple[Address, str]) -> None:
        self._loop.later(self._me.options.linger_s, self._free, suspect)

    def _free(self, suspect: tuple[Address, str]) -> None:
        for key, rank in self._suspects.pop(suspect, {}).items():
            self._release(key, rank)
