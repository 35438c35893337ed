"""The other side's manifest, over HTTP, and the verdict on the pair."""

import json
import time
import urllib.error
import urllib.request
from typing import Any, Final

from msgspec import Struct

from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.layout.read import decode_manifest, encode_manifest

ROUTE: Final = "/pdctl/layout"
"""Where a prefill engine's bootstrap server shows its layout: PUT by each rank, GET by decode engines and pdctl."""

_TIMEOUT: Final = 5.0
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Peers have private addresses: a proxy from the environment is never used."""


class Refusal(Struct, frozen=True):
    """Why this pair must not exchange a byte: the first code, and all findings in one line."""

    code: str
    text: str


def code_of(reason: str) -> str:
    """The code that a refusal of ours begins with; PD3111 for a failure of the engine's own."""
    return reason[:6] if reason[:2] == "PD" and reason[2:6].isdigit() else "PD3111"


class Unanswered(Exception):
    """The peer could not be asked now: ask again later."""


class NotYet(Unanswered):
    """The peer is there, but not all of its ranks have said what they hold."""


def publish(address: str, manifest: Manifest, attempts: int = 5) -> bool:
    """Tell the bootstrap server at `host:port` what this rank holds; False when it never took it."""
    for attempt in range(attempts):
        try:
            _http("PUT", f"http://{address}{ROUTE}", encode_manifest(manifest))
            return True
        except (OSError, urllib.error.HTTPError):
            if attempt + 1 < attempts:
                time.sleep(0.2 * 2**attempt)
    return False


def fetch(address: str) -> Manifest | None:
    """The prefill side's manifest; None where no plugin runs there.

    Raises NotYet while ranks are missing, Unanswered while it is down, ManifestError for an answer that is no manifest.
    """
    try:
        return decode_manifest(_http("GET", f"http://{address}{ROUTE}"), f"http://{address}{ROUTE}")
    except urllib.error.HTTPError as answer:
        if answer.code in (404, 405):
            return None
        raise (NotYet if answer.code == 503 else Unanswered)(f"HTTP {answer.code}") from answer
    except OSError as failure:
        raise Unanswered(str(failure)) from failure


def fetch_sizes(address: str) -> dict[str, Any]:
    """What SGLang's own bootstrap says of the prefill side: page_size, kv_cache_dtype, sizes. Unanswered."""
    query = "prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
    try:
        answer = json.loads(_http("GET", f"http://{address}/route?{query}"))
    except (OSError, urllib.error.HTTPError, ValueError) as failure:
        raise Unanswered(str(failure)) from failure
    if not isinstance(answer, dict):
        raise Unanswered("not an object")
    return answer


def _http(method: str, url: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, data=body, method=method, headers={"Content-Type": "application/json"})
    with _DIRECT.open(request, timeout=_TIMEOUT) as answer:
        data: bytes = answer.read()
        return data
