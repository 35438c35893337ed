"""PD1020: a stage must not send layers that it does not compute.

SGLang's Nemotron-H and Gemma 4 expose no start layer, so with PP the pool of every stage spans all layers, and each
stage sends what it never filled over what another one did. The transfer core takes such entries for no source.
"""

from collections.abc import Iterator

from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair, listed

#: Engines that send whatever a stage registers.
SEND_ALL = frozenset({"sglang"})


def check_idle_layers(pair: Pair) -> Iterator[Outcome]:
    """One finding; its evidence is every stage and kind."""
    idle = pair.pairing.of("not_computed")
    if idle and pair.prefill.engine.name in SEND_ALL and not pair.by_core:
        kinds = listed(problem.kind for problem in idle)
        what = f"{kinds}: prefill stages register layers that they do not compute, and SGLang sends them all the same"
        said = (pair.prefill_side.said(f"{problem.kind}: {problem.text}") for problem in idle)
        yield pair.finding("PD1020", [*pair.evidence("pp"), *said], what=what)
