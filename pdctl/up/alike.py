"""What the phases say of two answers, and the noise of a fleet's own engines that they are judged by."""

from collections.abc import Sequence
from functools import partial

from pdctl.engines.alike import NONE, ROUNDING, Noise, noise_of
from pdctl.engines.answer import Answer, Prompt, complete
from pdctl.engines.http import Unreachable
from pdctl.errors import GateError
from pdctl.up.context import Bringup
from pdctl.up.parallel import each
from pdctl.up.plan import EngineUnit
from pdctl.up.wait import excerpt
from pdctl.up.watch import watch_and_say

PROMPT = "pdctl asks each pair whether the state that it moves arrives whole."
TOKENS = 16
PROBE_S = 180.0
"""For one request through a pair: the first one may compile kernels."""
COMPLETION_S = 120.0

Pair = tuple[EngineUnit, EngineUnit]


class Doubtful(str):
    """The note of a phase that did not fail, and could not tell either whether all is right."""


def complete_at(
    run: Bringup,
    url: str,
    unit: str,
    prompt: Prompt = PROMPT,
    tokens: int = TOKENS,
    *,
    name: str,
    key: str | None = None,
) -> Answer:
    """A completion as clients ask for it, from an engine that serves alone or a router. Raises GateError (PD3011).

    `name`: the model that is asked for.
    """

    def ask(at: str) -> Answer:
        return complete(at, name, prompt, tokens, COMPLETION_S, key)

    try:
        (answer,) = each(ask, [url], meanwhile=partial(watch_and_say, run))
    except (Unreachable, ValueError) as error:
        log = run.launcher.log(unit)
        message = f"no completion from {unit}: {error}\n{excerpt(log)}"
        raise GateError(message, code="PD3011", hint=f"its whole log: {log}") from error
    if not answer.steps:
        raise GateError(f"an empty completion from {unit}", code="PD3011", hint=f"its log: {run.launcher.log(unit)}")
    return answer


def unmeasured(engines: Sequence[EngineUnit]) -> Noise:
    """What is allowed before any noise was measured."""
    return NONE if all(one.engine.exact for one in engines) else ROUNDING


def noise_alone(run: Bringup, one: EngineUnit) -> Noise:
    """The noise of an engine that serves alone, so that nothing moved has part in it."""
    served = one.instance
    ask = partial(complete_at, run, served.url, one.unit.name, name=served.served_name, key=served.key)
    return noise_of([ask()], ask)


def noise_over(pairs: Sequence[Pair]) -> Noise:
    """The noise over the quietest of some pairs: what does not arrive whole over one makes it louder, not quieter."""

    def measure(pair: Pair) -> Noise:
        def ask(prompt: Prompt = PROMPT, tokens: int = TOKENS) -> Answer:
            return pair[0].engine.probe(pair[0].instance, pair[1].instance, prompt, tokens, PROBE_S).answer

        return noise_of([ask()], ask)

    return min(each(measure, pairs, workers=1), key=lambda noise: noise.mean)
