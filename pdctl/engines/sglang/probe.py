"""One greedy request through one very pair, as a router would send it: the same body to both sides at once."""

import secrets
import threading
import time
from typing import Any

from pdctl.engines import answer, http
from pdctl.engines.base import Instance, Probe
from pdctl.errors import GateError


def probe(prefill: Instance, decode: Instance, prompt: answer.Prompt, max_tokens: int, timeout_s: float) -> Probe:
    """The tokens that came back from decode. Raises GateError (PD3008) with what both sides answered."""
    body = answer.request(decode.served_name, prompt, max_tokens) | {
        "bootstrap_host": prefill.host,
        "bootstrap_port": prefill.ports["bootstrap"],
        "bootstrap_room": secrets.randbits(47),  # above 47 bits some front ends read it as a float
    }
    answers: dict[str, Any] = {}

    def send(side: Instance) -> None:
        name = side.role
        try:
            answers[name] = answer.post(side.url, body, timeout_s, side.key)
        except http.Unreachable as failure:
            answers[name] = failure

    start = time.monotonic()
    senders = [threading.Thread(target=send, args=(side,), daemon=True) for side in (prefill, decode)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(timeout_s + 1)
    got = answers.get(decode.role)
    try:
        read = answer.from_completion(got)
    except ValueError:
        read = answer.Answer("", ())
    if len(read.steps) != max_tokens:
        said = "; ".join(f"{name}: {answers.get(name, 'no answer in time')}" for name in (prefill.role, decode.role))
        raise GateError(
            f"no token came back: {said}"[:2000],
            code="PD3008",
            hint=f"pdctl logs {decode.fleet.name} {decode.name}; pdctl check --live says whether the layouts fit",
        )
    return Probe(read, None, time.monotonic() - start)
