"""PD1020: a stage must not send layers that it does not compute.

SGLang's Nemotron-H and Gemma 4 expose no start layer, so with PP the pool of every stage spans all layers, and each
stage sends what it never filled over what another one did. The reference engine takes such entries for no source.
"""

from collections.abc import Iterator

from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair

#: Engines that send whatever a stage registers.
SEND_ALL = frozenset({"sglang"})


def check_idle_layers(pair: Pair) -> Iterator[Outcome]:
    """One finding for each stage and kind."""
    if pair.prefill.engine.name not in SEND_ALL:
        return
    for problem in pair.pairing.of("not_computed"):
        what = f"{problem.kind}: prefill {problem.text}, and SGLang sends them all the same"
        yield pair.finding("PD1020", [*pair.evidence("pp"), pair.prefill_side.said(problem.text)], what=what)
