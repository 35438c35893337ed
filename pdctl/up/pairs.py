"""Phase `pairs`: a real block crosses every pair; /health is green on engines that die at their first request."""

from collections.abc import Iterator

from pdctl.errors import GateError
from pdctl.up.context import Bringup
from pdctl.up.parallel import each
from pdctl.up.plan import EngineUnit
from pdctl.up.wait import excerpt

PROMPT = "pdctl asks each pair whether the state that it moves arrives whole."
TOKENS = 8
PROBE_S = 180.0
"""For one request through a pair: the first one may compile kernels."""

Pair = tuple[EngineUnit, EngineUnit]


def rounds(prefill: tuple[EngineUnit, ...], decode: tuple[EngineUnit, ...]) -> Iterator[list[Pair]]:
    """Every pair once, in as few rounds as there are engines on the larger side; nobody twice in a round."""
    for shift in range(max(len(prefill), len(decode))):
        if len(prefill) <= len(decode):
            yield [(one, decode[(index + shift) % len(decode)]) for index, one in enumerate(prefill)]
        else:
            yield [(prefill[(index + shift) % len(prefill)], one) for index, one in enumerate(decode)]


def probe_pairs(run: Bringup) -> str:
    """One short greedy request over each pair.

    Raises GateError: PD3008 it failed, PD3009 decode computed the prompt, PD3010 the pairs chose different tokens.
    """
    prefill, decode = run.plan.of("prefill"), run.plan.of("decode")
    total = len(prefill) * len(decode)
    for pairs in rounds(prefill, decode):
        each(lambda pair: _probe(run, pair), pairs)
        run.events.progress(f"{len(run.probes)} of {total} pairs")
    answers = {probe.tokens for probe in run.probes.values()}
    if len(answers) > 1:
        raise GateError(
            _disagreement(run), code="PD3010", hint="equal engines must choose equal tokens; verify the model"
        )
    slowest = max(run.probes.items(), key=lambda item: item[1].seconds)
    return f"{total} of {total}, slowest {slowest[1].seconds:.2f} s"


def _probe(run: Bringup, pair: Pair) -> None:
    prefill, decode = pair[0].instance, pair[1].instance
    name = f"{prefill.name} → {decode.name}"
    try:
        probe = pair[0].engine.probe(prefill, decode, PROMPT, TOKENS, PROBE_S)
    except GateError as error:
        logs = "\n".join(f"  {one.name}\n{excerpt(run.launcher.log(one.name), 3)}" for one in (prefill, decode))
        raise GateError(f"{name}: {error.message}\n{logs}", code=error.code, hint=error.hint) from error
    if probe.recomputed:
        message = f"{name}: decode computed {probe.recomputed} prompt tokens itself, so nothing of use was moved"
        raise GateError(message, code="PD3009", hint="the logs of both engines say why the transfer was not used")
    run.probes[prefill.name, decode.name] = probe


def _disagreement(run: Bringup) -> str:
    """Which pairs differ from the most common answer."""
    tokens = [probe.tokens for probe in run.probes.values()]
    usual = max(set(tokens), key=tokens.count)
    odd = [f"{a} → {b}" for (a, b), probe in run.probes.items() if probe.tokens != usual]
    return f"{', '.join(odd[:8])}: other tokens than over the remaining pairs, for the same prompt"
