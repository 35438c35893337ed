"""Phase `pairs`: a real block crosses every pair; /health is green on engines that die at their first request."""

from collections import Counter
from collections.abc import Iterator
from functools import partial

from pdctl.engines.alike import Noise, Verdict, compare, judge
from pdctl.engines.base import Probe
from pdctl.errors import GateError
from pdctl.up.alike import PROBE_S, PROMPT, TOKENS, Doubtful, Pair, noise_alone, noise_over, unmeasured
from pdctl.up.context import Bringup
from pdctl.up.parallel import each
from pdctl.up.plan import EngineUnit
from pdctl.up.wait import excerpt
from pdctl.up.watch import watch_and_say

_GRAVEST_FIRST = ("wrong", "untold", "noise")
ASKED_AGAIN = 4
"""Pairs over which an engine's noise is measured where none serves alone."""


def rounds(prefill: tuple[EngineUnit, ...], decode: tuple[EngineUnit, ...]) -> Iterator[list[Pair]]:
    """Every pair once, in as few rounds as there are engines on the larger side; nobody twice in a round."""
    for shift in range(max(len(prefill), len(decode))):
        if len(prefill) <= len(decode):
            yield [(one, decode[(index + shift) % len(decode)]) for index, one in enumerate(prefill)]
        else:
            yield [(prefill[(index + shift) % len(prefill)], one) for index, one in enumerate(decode)]


def probe_pairs(run: Bringup) -> str:
    """One short greedy request over each pair.

    Raises GateError: PD3008 it failed, PD3009 decode computed the prompt, PD3010 the pairs answer differently.
    """
    prefill, decode = run.plan.of("prefill"), run.plan.of("decode")
    total = len(prefill) * len(decode)
    for pairs in rounds(prefill, decode):
        each(lambda pair: _probe(run, pair), pairs, meanwhile=partial(watch_and_say, run))
        run.events.progress(f"{len(run.probes)} of {total} pairs")
    slowest = max(run.probes.values(), key=lambda probe: probe.seconds)
    note = f"{total} of {total}, slowest {slowest.seconds:.2f} s"
    return _agree(run, note) if total > 1 else note


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


def _agree(run: Bringup, note: str) -> str:
    """The note with what the answers are to each other; raises GateError (PD3010) where one is wrong."""
    engines = [*run.plan.of("prefill"), *run.plan.of("decode")]
    verdicts = _verdicts(run, unmeasured(engines))
    exact = all(one.engine.exact for one in engines)
    if not exact and any(verdict.kind == "wrong" for verdict in verdicts.values()):
        verdicts = _verdicts(run, _noise(run))
    odd = {kind: [name for name, one in verdicts.items() if one.kind == kind][:8] for kind in _GRAVEST_FIRST}
    kind = next((kind for kind in _GRAVEST_FIRST if odd[kind]), None)
    if kind is None:
        return f"{note}, all answers equal"
    names, words = ", ".join(odd[kind]), verdicts[odd[kind][0]].words
    if kind == "wrong":
        message = f"{names}: another answer than over the remaining pairs, for the same prompt: {words}"
        hint = "`pdctl check --live` compares what the engines hold; verify the model"
        raise GateError(message, code="PD3010", hint=hint)
    if kind == "untold":
        return Doubtful(f"{note}, whether all answers agree cannot be told: {names}: {words}")
    return f"{note}, all answers alike within the engine's own noise: {names}: {words}"


def _verdicts(run: Bringup, noise: Noise) -> dict[str, Verdict]:
    """What each pair's answer is to the most common one, by the pair's name; the furthest apart first."""
    (usual, _), *_ = Counter(probe.answer.tokens for probe in run.probes.values()).most_common(1)
    base = next(probe.answer for probe in run.probes.values() if probe.answer.tokens == usual)

    def distance(entry: tuple[object, Probe]) -> float:
        return -max(compare(entry[1].answer, base).shifts, default=0.0)

    return {
        f"{prefill} → {decode}": judge(compare(probe.answer, base), noise)
        for (prefill, decode), probe in sorted(run.probes.items(), key=distance)
    }


def _noise(run: Bringup) -> Noise:
    """The noise of an engine that serves alone, else over a few pairs."""
    alone = run.plan.of("aggregate")
    if alone:
        return noise_alone(run, alone[0])
    units: dict[str, EngineUnit] = {one.unit.name: one for one in run.plan.engines}
    return noise_over([(units[a], units[b]) for a, b in list(run.probes)[:ASKED_AGAIN]])
