"""PD1036: what the connector's handshake compares must be equal, though it shapes no buffer.

Push and pull never meet, two attention backends never do, nor does a hybrid manager on one side, whatever the model.
Where one side leaves the value to the engine nothing is concluded. Before vLLM 0.28 the hash has no push and pull in
it: the handshake passes, and nobody moves a page.
"""

from collections.abc import Iterator
from typing import Final

from pdctl_transfer.rules.contracts import contract_of, factors
from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair, field_value

#: What two sides must have alike to move a page at all, whether the handshake compares it or not.
NEVER_MEET: Final = ("transfer_mode", "pages move by")


def check_handshake(pair: Pair) -> Iterator[Outcome]:
    """The factors that no other rule is about."""
    contract = contract_of(pair)
    if contract is None:
        return
    lone = {factor.field: factor.said for factor in factors(pair) if factor.said}
    hashed = set(lone)
    lone.setdefault(*NEVER_MEET)
    for name, said in lone.items():
        prefill, decode = field_value(pair.prefill, name), field_value(pair.decode, name)
        if prefill == decode:
            if prefill is not None:
                yield pair.held(name, f"{said} {_shown(prefill)} on both sides")
        elif prefill is None or decode is None:
            side = "prefill" if prefill is None else "decode"
            yield pair.skipped(name, f"{side} leaves its {said} to the engine; the handshake compares it")
        elif pair.outside and name in hashed:
            yield pair.skipped(name, f"{said} differ: {pair.outside}", needed=True)
        else:
            what = f"{said} {_shown(prefill)} on prefill, {_shown(decode)} on decode"
            who = contract.who if name in hashed else "the handshake passes, and each side waits for the other; pdctl"
            yield pair.finding("PD1036", pair.evidence(name), what=what, who=who)


def _shown(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
