"""Which way each pair of a running engine takes, by the engine's own word: by the core, or by its own transfer.

What an engine does not say is unknown, with the reason; nothing is concluded from what was asked for.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from pdctl.engines.deadline import Deadline
from pdctl.engines.live import Running
from pdctl.engines.said import ANSWER_S, Hidden, Mute, Stranger, ask
from pdctl.engines.sglang.live import INFO_BYTES

VLLM_ROUTE: Final = "/pdctl/ways"
SGLANG_ROUTE: Final = "/server_info"
MOST: Final = 4096
"""Ways of one engine that are read; more peers than that it has not."""
NO_PLUGIN: Final = "it shows none: it runs without pdctl's plugin, or with one that knows no core"


class Way(Struct, frozen=True):
    """One pair of the engine: its peer's address, by whom the state goes, and why."""

    peer: str
    way: Literal["core", "engine"]
    code: str
    reason: str


class Ways(Struct, frozen=True):
    """What an engine says of all of its pairs; `unknown` says why it says nothing, and there is none then."""

    ways: tuple[Way, ...] = ()
    unknown: str | None = None


def ways_of(running: Running, timeout_s: float = ANSWER_S) -> Ways:
    """Ask one engine. Raises nothing: what cannot be read is unknown."""
    if running.engine == "reference":
        return Ways(unknown="it has the core and no other way")
    deadline = Deadline(timeout_s)
    try:
        if running.engine == "sglang":
            said = _of_ranks(ask(running, SGLANG_ROUTE, deadline, INFO_BYTES))
        else:
            said = ask(running, VLLM_ROUTE, deadline)
    except (Hidden, Mute, Stranger) as failure:
        return Ways(unknown=str(failure))
    if said is None:
        return Ways(unknown=NO_PLUGIN)
    try:
        return Ways(tuple(dict.fromkeys(_read(said))))
    except (TypeError, KeyError, ValueError) as failure:
        return Ways(unknown=f"what it shows is no list of ways: {failure}")


def _of_ranks(info: Any) -> Any:
    """The ways that all ranks of SGLang show; None where none shows any."""
    states = info.get("internal_states") if isinstance(info, Mapping) else None
    plugins = [one.get("pdctl") for one in states if isinstance(one, Mapping)] if isinstance(states, list) else []
    shown = [one["ways"] for one in plugins if isinstance(one, Mapping) and isinstance(one.get("ways"), list)]
    return [way for ways in shown for way in ways] if shown else None


def _read(said: Any) -> Iterator[Way]:
    if not isinstance(said, list):
        raise TypeError(type(said).__name__)
    for one in said[:MOST]:
        if one["way"] not in ("core", "engine"):
            raise ValueError(f"way {one['way']!r}")
        yield Way(*(str(one[name]) for name in ("peer", "way", "code", "reason")))  # type: ignore[arg-type]
