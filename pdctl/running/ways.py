"""The ways of a running fleet's pairs: what its engines say, with the peer by its name where it is a member."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from pdctl.engines.live import Running
from pdctl.engines.ways import Way, Ways, ways_of
from pdctl.fleet.urls import authority, host_of, parse_url

SIDES: Final = ("prefill", "decode")


class Carried(Struct, frozen=True):
    """One engine's word: its pairs, each with the name of the member that the peer is, or None where it is none."""

    unit: str
    core: str
    """What the engine was told: engine, pdctl, auto."""
    ways: tuple[tuple[Way, str | None], ...] = ()
    unknown: str | None = None

    @property
    def notes(self) -> list[str]:
        """What a person should know: a word that is missing, and pairs that go another way than the file says."""
        if self.unknown:
            return [f"PD3123 {self.unit}: which way its pairs take is not known: {self.unknown}"]
        if self.core != "pdctl":
            return []
        return [
            f"PD3124 {self.unit}: `core: pdctl` is said, and {name or way.peer} goes by the engine's own transfer: "
            f"{way.code} {way.reason}"
            for way, name in self.ways
            if way.way == "engine"
        ]

    def document(self) -> dict[str, Any]:
        """As `status -o json` has it: `pairs` is null where they are unknown."""
        pairs = [
            {"peer": way.peer, "unit": name, "way": way.way, "code": way.code, "reason": way.reason}
            for way, name in self.ways
        ]
        return {"core": self.core, "pairs": None if self.unknown else pairs, "unknown": self.unknown}


def carried(
    members: Sequence[Running],
    answering: Iterable[str],
    each: Callable[[Callable[[Running], Ways], Sequence[Running]], Sequence[Ways]],
) -> dict[str, Carried]:
    """Of each engine that was told of the core what it says of its pairs. One that does not answer is not asked."""
    ready, names = set(answering), _by_place(members)
    told = [one for one in members if one.role in SIDES and one.core != "engine"]
    asked = [one for one in told if one.name in ready]
    said = dict(zip((one.name for one in asked), each(ways_of, asked), strict=True))
    found = {}
    for one in told:
        ways = said.get(one.name, Ways(unknown="it does not answer"))
        pairs = tuple((way, names.get(way.peer)) for way in ways.ways)
        found[one.name] = Carried(one.name, one.core, pairs, ways.unknown)
    return found


def _by_place(members: Sequence[Running]) -> Mapping[str, str]:
    """Members by each address at which a peer may know them."""
    found: dict[str, str] = {}
    for one in members:
        places = list(one.places.values())
        if one.url is not None:
            places.append((host_of(one.url), parse_url(one.url).port))
        for host, port in places:
            found[authority(host, port)] = one.name
            found.setdefault(f"{host}:{port}", one.name)
    return found
