"""What a vLLM engine says of itself: `/version`, `/v1/models`, the plugin's layout where there is one, and its metrics.

Its role is in none of its own endpoints. With the plugin the layout says it; without it one gauge tells whether the
engine takes KV from another (vLLM 0.32.0, v1/metrics/loggers.py: registered for `is_kv_consumer` alone, which is
`kv_consumer` and `kv_both`).
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from pdctl.engines.deadline import Deadline
from pdctl.engines.live import LAYOUT_BYTES, Running
from pdctl.engines.said import Hidden, Mute, Said, Stranger, answer, ask
from pdctl_transfer.plugins.peer import ROUTE
from pdctl_transfer.rules.releases import release

_TAKES_KV: Final = b"vllm:num_requests_kv_fetch_by_stage"
_SINCE: Final = (0, 32)
"""The release in which that gauge was read."""
_CACHE: Final = re.compile(rb"^vllm:cache_config_info\{(.*)\} 1", re.MULTILINE)
_SIZES: Final = {"page_size": rb'(?:^|,)block_size="([0-9]+)"', "kv_cache_dtype": rb'(?:^|,)cache_dtype="([a-z0-9_]+)"'}


def say(running: Running, deadline: Deadline) -> Said:
    """Raises Mute, Stranger."""
    found = ask_version(running, deadline)
    try:
        models = _models(ask(running, "/v1/models", deadline))
        layout = ask(running, ROUTE, deadline, LAYOUT_BYTES)
        hidden = None
    except Hidden as reason:
        models, layout, hidden = None, None, str(reason)
    role = layout.get("role") if isinstance(layout, Mapping) else None
    metrics = _metrics(running, deadline)
    return Said(
        engine="vllm",
        models=models,
        role=role if role in ("prefill", "decode") else None,
        version=found,
        sizes=dict(_sizes(metrics)),
        takes_kv=_takes_kv(metrics, found),
        hidden=hidden,
    )


def ask_version(running: Running, deadline: Deadline) -> str:
    """Raises Mute, Stranger."""
    try:
        found = ask(running, "/version", deadline)
    except Hidden as reason:
        raise Stranger(f"{running.url}/version: {reason}; vLLM shows it to anyone") from reason
    if not isinstance(found, Mapping) or not isinstance(found.get("version"), str):
        raise Stranger(f"{running.url}/version: not what vLLM says there: no engine of vLLM's")
    return str(found["version"])


def _models(document: Any) -> tuple[str, ...] | None:
    cards = document.get("data") if isinstance(document, Mapping) else None
    if not isinstance(cards, list):
        return None
    return tuple(str(card["id"]) for card in cards if isinstance(card, Mapping) and "id" in card)


def _metrics(running: Running, deadline: Deadline) -> bytes:
    """What it counts; nothing where it does not show it."""
    try:
        status, body = answer(running, "/metrics", deadline)
    except (Hidden, Mute, Stranger):
        return b""
    return body if status == 200 else b""


def _sizes(metrics: bytes) -> "list[tuple[str, int | str]]":
    labels = _CACHE.search(metrics)
    found = {name: re.search(pattern, labels[1]) for name, pattern in _SIZES.items()} if labels else {}
    texts = {name: match[1].decode() for name, match in found.items() if match}
    return [(name, int(text) if text.isdecimal() else text) for name, text in texts.items()]


def _takes_kv(metrics: bytes, version: str) -> bool | None:
    if _TAKES_KV in metrics:
        return True
    known = release(version.partition("+")[0])
    return False if _CACHE.search(metrics) and known is not None and known[:2] == _SINCE else None
