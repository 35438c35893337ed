"""One greedy request through one very pair, as a proxy would send it: to prefill, then with its answer to decode."""

import secrets
import time
from typing import Any, Final

from pdctl.engines import http
from pdctl.engines.answer import Prompt, from_completion, post, request, without_logprobs
from pdctl.engines.base import Instance, Probe
from pdctl.engines.core import by_core
from pdctl.errors import GateError

#: What a proxy sends to a prefill engine over NIXL; the answer holds what decode needs.
FOR_PREFILL: Final = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def probe(prefill: Instance, decode: Instance, prompt: Prompt, max_tokens: int, timeout_s: float) -> Probe:
    """The tokens that came back from decode. Raises GateError (PD3008) with what the side that failed answered."""
    body = request(decode.served_name, prompt, max_tokens)
    start = time.monotonic()
    own = (decode.pool.engine or decode.fleet.engine) == "vllm"
    mooncake = own and decode.fleet.transfer.backend == "mooncake" and not by_core(decode)
    asked, handed = _by_mooncake(prefill, decode, timeout_s) if mooncake else (FOR_PREFILL, None)
    to_prefill = without_logprobs(body) | {"max_tokens": 1, "kv_transfer_params": asked}
    first = _ask(prefill, decode, to_prefill, timeout_s)
    handed = handed or first.get("kv_transfer_params")
    if not isinstance(handed, dict) or not handed.get("do_remote_prefill"):
        raise _failed(decode, f"{prefill.name} prefilled, but its answer hands nothing over: {handed}")
    answer = _ask(decode, decode, body | {"kv_transfer_params": handed}, timeout_s)
    try:
        read = from_completion(answer)
    except ValueError as failure:
        raise _failed(decode, f"{decode.name}: {failure}") from failure
    if len(read.steps) != max_tokens:
        raise _failed(decode, f"{decode.name} answered {str(answer)[:300]}")
    return Probe(read, None, time.monotonic() - start)


def _by_mooncake(prefill: Instance, decode: Instance, timeout_s: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """What both sides get over Mooncake: decode finds prefill's ranks at its bootstrap server, by the engine's id."""
    address = f"http://{prefill.host}:{prefill.ports['bootstrap']}"
    try:
        ranks = http.get_json(f"{address}/query", timeout_s)
        engine_id = next(iter(ranks.values()))["engine_id"]
    except (http.Unreachable, StopIteration, KeyError, AttributeError, TypeError) as failure:
        raise _failed(decode, f"{prefill.name}'s bootstrap server: {failure}") from failure
    transfer = {"transfer_id": f"pdctl-{secrets.token_hex(8)}"}
    to_prefill = {"do_remote_decode": True, "do_remote_prefill": False} | transfer
    remote = {"remote_bootstrap_addr": address, "remote_engine_id": engine_id}
    return to_prefill, {"do_remote_decode": False, "do_remote_prefill": True} | remote | transfer


def _ask(side: Instance, decode: Instance, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    try:
        answer = post(side.url, body, timeout_s, side.key)
    except http.Unreachable as failure:
        raise _failed(decode, f"{side.name}: {failure}") from failure
    if not isinstance(answer, dict):
        raise _failed(decode, f"{side.name} answered {str(answer)[:300]}")
    return answer


def _failed(decode: Instance, said: str) -> GateError:
    return GateError(
        f"no token came back: {said}"[:2000],
        code="PD3008",
        hint=f"pdctl logs {decode.fleet.name} {decode.name}; pdctl check --live says whether the layouts fit",
    )
