"""What a fleet's transport takes of its longest transfers, apart from all else that a check judges: for `preflight`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pdctl.check.by_core import by_one_way
from pdctl.check.token_batches import check_token_batches
from pdctl.check.ways import way_of
from pdctl.errors import InputError
from pdctl_transfer.rules import Outcome, Pair, Skipped

if TYPE_CHECKING:
    from pdctl.fleet import LoadedFleet


def transport_limits(loaded: "LoadedFleet") -> Iterator[Outcome]:
    """Of each pair by the way that it will take. Skipped, with the reason, where the model cannot be read here."""
    if loaded.fleet.transfer.protocol != "tcp":
        return
    try:
        groups, _ = by_one_way(loaded)
    except InputError as error:
        yield Skipped("token_batches", loaded.fleet.name, f"layouts are not known here: {error.message}")
        return
    known = [one for one in groups if one.sides and not one.blocked and one.unknown is None]
    for prefill in (one for one in known if one.role == "prefill"):
        for decode in (one for one in known if one.role == "decode"):
            pair, _ = way_of(Pair(prefill.side, decode.side), prefill, decode)
            yield from check_token_batches(pair, prefill, decode)
