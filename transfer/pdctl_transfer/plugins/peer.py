"""The other side's manifest, over HTTP, and the verdict on the pair."""

import json
import time
from typing import Any, Final

from msgspec import Struct

from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.layout.read import decode_manifest, encode_manifest
from pdctl_transfer.plugins.ask import ask

ROUTE: Final = "/pdctl/layout"
"""Where a prefill engine's bootstrap server shows its layout: PUT by each rank, GET by decode engines and pdctl."""
_SIZES_BYTES: Final = 64 << 10


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
            status, _ = ask("PUT", f"http://{address}{ROUTE}", encode_manifest(manifest))
        except OSError:
            status = 0
        if status == 200:
            return True
        if 400 <= status < 500:  # it will say the same again
            return False
        if attempt + 1 < attempts:
            time.sleep(0.2 * 2**attempt)
    return False


def fetch(address: str) -> Manifest | None:
    """The prefill side's manifest; None where no plugin runs there.

    Raises NotYet while ranks are missing, Unanswered while it is down, ManifestError for an answer that is no manifest.
    """
    url = f"http://{address}{ROUTE}"
    try:
        status, body = ask("GET", url)
    except OSError as failure:
        raise Unanswered(str(failure)) from failure
    if status in (404, 405):
        return None
    if status != 200:
        raise (NotYet if status == 503 else Unanswered)(f"HTTP {status}")
    return decode_manifest(body, url)


def fetch_sizes(address: str) -> dict[str, Any]:
    """What SGLang's own bootstrap says of the prefill side: page_size, kv_cache_dtype, sizes. Unanswered."""
    query = "prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
    try:
        status, body = ask("GET", f"http://{address}/route?{query}", limit_bytes=_SIZES_BYTES)
        answer = json.loads(body)
    except (OSError, ValueError, RecursionError) as failure:
        raise Unanswered(str(failure)) from failure
    if status != 200:
        raise Unanswered(f"HTTP {status}")
    if not isinstance(answer, dict):
        raise Unanswered("not an object")
    return answer
