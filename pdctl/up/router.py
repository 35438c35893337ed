"""Phases `router` and `completion`: the way that clients take."""

import time
from typing import Any

from pdctl.engines.http import Unreachable, post_json
from pdctl.errors import GateError
from pdctl.routers import READY_PATH
from pdctl.up.context import Bringup
from pdctl.up.pairs import PROMPT, TOKENS
from pdctl.up.parallel import each
from pdctl.up.wait import Gate, excerpt, start_and_wait

ROUTER_S = 60.0
COMPLETION_S = 120.0


def start_router(run: Bringup) -> str:
    """The router, once it says that it can route to both sides."""
    gate = Gate(run.plan.router, run.plan.url + READY_PATH, ROUTER_S)
    start_and_wait(run, [gate])
    return f"{run.plan.router_kind.name} at {run.plan.url}"


def first_completion(run: Bringup) -> str:
    """A completion through the router, equal to the aggregate engine's where the fleet has one.

    Raises GateError: PD3011 none came back, PD3012 it differs.
    """
    began = time.monotonic()
    text = _complete(run, run.plan.url, "router")
    note = f"{TOKENS} tokens in {time.monotonic() - began:.2f} s"
    for one in run.plan.of("aggregate"):
        expected = _complete(run, one.instance.url, one.unit.name)
        if text == expected:
            note += f", equal to {one.unit.name}'s"
            continue
        message = f"through the router {text!r}, from {one.unit.name} {expected!r}"
        if one.engine.exact:
            raise GateError(message, code="PD3012", hint="`pdctl check --live` compares what the engines hold")
        note += f"; {message}"
    return note


def _complete(run: Bringup, url: str, unit: str) -> str:
    body: dict[str, Any] = {
        "model": run.loaded.fleet.model.served_name,
        "prompt": PROMPT,
        "max_tokens": TOKENS,
        "temperature": 0,
    }
    try:
        (answer,) = each(lambda url: post_json(f"{url}/v1/completions", body, COMPLETION_S), [url])
        text = answer["choices"][0]["text"]
    except (Unreachable, KeyError, IndexError, TypeError) as error:
        log = run.launcher.log(unit)
        message = f"no completion from {unit}: {error}\n{excerpt(log)}"
        raise GateError(message, code="PD3011", hint=f"its whole log: {log}") from error
    if not text:
        raise GateError(f"an empty completion from {unit}", code="PD3011", hint=f"its log: {run.launcher.log(unit)}")
    return str(text)
