"""PD1036: what the connector's handshake compares must be equal, though it shapes no buffer.

Push and pull never meet, two attention backends never do, nor does a hybrid manager on one side, whatever the model.
Where one side leaves the value to the engine nothing is concluded.
"""

from collections.abc import Iterator

from pdctl_transfer.rules.contracts import contract_of
from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair, field_value


def check_handshake(pair: Pair) -> Iterator[Outcome]:
    """The factors that no other rule is about."""
    contract = contract_of(pair)
    for name, said in contract.lone if contract else ():
        prefill, decode = field_value(pair.prefill, name), field_value(pair.decode, name)
        if prefill == decode:
            if prefill is not None:
                yield pair.held(name, f"{said} {_shown(prefill)} on both sides")
        elif prefill is None or decode is None:
            side = "prefill" if prefill is None else "decode"
            yield pair.skipped(name, f"{side} leaves its {said} to the engine; the handshake compares it")
        else:
            assert contract is not None
            what = f"{said} {_shown(prefill)} on prefill, {_shown(decode)} on decode"
            yield pair.finding("PD1036", pair.evidence(name), what=what, who=contract.who)


def _shown(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
