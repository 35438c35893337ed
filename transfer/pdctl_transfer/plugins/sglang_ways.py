"""Which way a pair of SGLang engines goes, the engine's own or the core's, and why.

Both ways stay alive in one engine. A decode engine chooses for each prefill engine at the handshake, by what both sides
have and were told; a prefill engine serves whichever way its requests are asked for. What the core does not understand
goes the engine's way, with a code that the log and `/server_info` show.
"""

import functools
import logging
from collections.abc import Callable, Iterable
from typing import Final, Literal

from msgspec import Struct

from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.plugins.core import Core
from pdctl_transfer.plugins.judge import refusal, refused
from pdctl_transfer.plugins.peer import Refusal
from pdctl_transfer.rules import Finding, Pair, judge
from pdctl_transfer.session.failure import Failure

log = logging.getLogger("pdctl")

NOT_FOUND: Final = frozenset({"PD4001", "PD4002", "PD4003", "PD4032"})
"""Failures after which the registry is asked for anew."""


class Way(Struct, frozen=True):
    """How requests of a pair travel, and why."""

    peer: str
    way: Literal["core", "engine"]
    code: str
    reason: str


class Offer(Struct, frozen=True):
    """What a prefill engine says of the core at its bootstrap port. `ready`: all of its ranks are at `host:port`."""

    state: Literal["ready", "pending", "off"]
    host: str = ""
    port: int = 0
    code: str = ""
    reason: str = ""


def choose(
    peer: str,
    core: Core,
    *,
    unequal_tp: bool,
    here: Refusal | None,
    offer: Offer | None,
    of_core: Refusal | None,
    of_engine: Refusal | None,
) -> Way | None:
    """The way of a pair; None while the prefill engine's ranks are still coming.

    core: what this engine was told. here: why it has no core. offer: what the prefill engine says, None where it says
    nothing. of_core, of_engine: what either way cannot do of this pair.
    """
    engine = functools.partial(Way, peer, "engine")
    if core == "engine":
        return engine("PD3139", "this engine was told to keep its own path")
    if here is not None:
        return engine(here.code, here.text)
    if offer is None:
        return engine("PD3130", "no core answers at the prefill engine's bootstrap port")
    if offer.state == "off":
        return engine(offer.code, f"on prefill: {offer.reason}")
    if of_core is not None:
        return engine("PD3143", f"{of_core.code}: {of_core.text}")
    if offer.state == "pending":
        return None
    if core == "pdctl":
        return Way(peer, "core", "PD3138", "this engine was told to use the core")
    if of_engine is not None:
        return Way(peer, "core", "PD3137", f"{of_engine.code}: {of_engine.text}")
    if unequal_tp:
        return Way(peer, "core", "PD3136", "attention TP is unequal: the engine would send each token by itself")
    return engine("PD3135", "attention TP is equal: the engine sends whole pages, too")


def core_check(prefill: Manifest, decode: Manifest) -> Iterable[Finding]:
    """What the rules refuse of the core's way: what only the engine's backends cannot do is not asked."""
    outcomes = judge(Pair.of(prefill, decode, core=True))
    return [outcome for outcome in outcomes if isinstance(outcome, Finding) and refused(outcome)]


def core_refusal(prefill: Manifest, decode: Manifest) -> Refusal | None:
    """What the core cannot do of this pair."""
    return refusal(core_check(prefill, decode))


class Ways:
    """What was chosen, by peer; said in the log where it is new."""

    def __init__(self) -> None:
        self._chosen: dict[str, Way] = {}
        self._said: dict[str, Way] = {}
        self._offers: dict[str, Offer] = {}
        self._doubted: set[str] = set()

    def keep(self, way: Way, offer: Offer | None = None) -> None:
        """A choice holds until it is forgotten."""
        self._chosen[way.peer] = way
        if offer is not None:
            self._offers[way.peer] = offer
        if self._said.get(way.peer) != way:
            self._said[way.peer] = way
            log.warning("pdctl plugin: %s: %s by the %s's way: %s", way.code, way.peer, way.way, way.reason)

    def registry(self, peer: str) -> tuple[str, int] | None:
        """Where the core's ranks of this peer are found; None where it goes the engine's way."""
        way, offer = self._chosen.get(peer), self._offers.get(peer)
        return (offer.host, offer.port) if way is not None and way.way == "core" and offer is not None else None

    def doubt(self, peer: str, failure: Failure | None) -> None:
        """A request failed. Where its registry or its ranks were not found, a fast restart may have moved them."""
        if failure is not None and failure.code in NOT_FOUND:
            self._doubted.add(peer)

    def renew(self, peer: str, fetch: Callable[[str], Offer | None]) -> None:
        """Ask a doubted peer anew where its registry is. The way stays: it is all ranks' choice."""
        if peer in self._doubted:
            offer = fetch(peer)
            self._doubted.discard(peer)
            if offer is not None and offer.port and peer in self._offers:
                self._offers[peer] = offer

    def forget(self, peer: str) -> None:
        """Its process may be another one by now."""
        self._chosen.pop(peer, None)
        self._offers.pop(peer, None)

    def shown(self) -> list[Way]:
        """The last choice for every peer, also of those that are gone."""
        return list(self._said.values())
