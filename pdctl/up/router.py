"""Phases `router` and `completion`: the way that clients take."""

import time

from pdctl.engines.alike import Verdict, compare, judge
from pdctl.engines.answer import Answer
from pdctl.errors import GateError
from pdctl.launch.state import ROUTER
from pdctl.routers import READY_PATH, Backend
from pdctl.up.alike import TOKENS, Doubtful, complete_at, noise_alone, unmeasured
from pdctl.up.context import Bringup, Gate
from pdctl.up.drain import Enlisted, enlist, make_way
from pdctl.up.plan import EngineUnit
from pdctl.up.wait import start_and_wait

ROUTER_S = 60.0


def start_router(run: Bringup) -> str:
    """The router, once it says that it can route to both sides."""
    make_way(run, ROUTER)
    gate = Gate(run.plan.router, run.plan.url + READY_PATH, ROUTER_S, key=run.plan.router_key)
    if ROUTER in run.running:
        enlist(run, run.plan.url, {one.unit.name: enlisted(one) for one in run.plan.engines})
    start_and_wait(run, [gate])
    return f"{run.plan.router_kind.name} at {run.plan.url}"


def enlisted(one: EngineUnit) -> Enlisted:
    """An engine as the router's list has it."""
    return Enlisted(one.instance.role, Backend(one.instance.url, one.instance.ports.get("bootstrap"), one.instance.key))


def first_completion(run: Bringup) -> str:
    """A completion through the router; beside the aggregate engine's where the fleet has one.

    Raises GateError: PD3011 none came back, PD3012 it is wrong.
    """
    began = time.monotonic()
    name = run.plan.of("prefill")[0].instance.served_name
    ours = complete_at(run, run.plan.url, "router", name=name, key=run.plan.router_key)
    notes, sure = [f"{TOKENS} tokens in {time.monotonic() - began:.2f} s"], True
    for one in run.plan.of("aggregate"):
        alone = one.instance
        theirs = complete_at(run, alone.url, one.unit.name, name=alone.served_name, key=alone.key)
        kind, words = _verdict(run, one, ours, theirs)
        sure = sure and kind != "untold"
        match kind:
            case "equal":
                notes.append(f"equal to {one.unit.name}'s")
            case "noise":
                notes.append(f"alike {one.unit.name}'s within its own noise: {words}")
            case "untold":
                notes.append(f"whether it is {one.unit.name}'s cannot be told: {words}")
            case "wrong":
                message = f"through the router {ours.text!r}, from {one.unit.name} {theirs.text!r}: {words}"
                raise GateError(message, code="PD3012", hint="`pdctl check --live` compares what the engines hold")
    return ", ".join(notes) if sure else Doubtful(", ".join(notes))


def _verdict(run: Bringup, alone: EngineUnit, ours: Answer, theirs: Answer) -> Verdict:
    """Noise is measured only where rounding does not explain the difference."""
    found = compare(ours, theirs)
    verdict = judge(found, unmeasured([alone]))
    if verdict.kind == "wrong" and not alone.engine.exact:
        return judge(found, noise_alone(run, alone))
    return verdict
