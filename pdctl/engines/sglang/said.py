"""What an SGLang engine says of itself, and a reference engine in its words: `/server_info`, and the bootstrap server.

The names are those of SGLang 0.5.x; `/get_server_info` is what older releases call it.
"""

from collections.abc import Mapping
from typing import Any, Final

from pdctl.engines.deadline import Deadline
from pdctl.engines.http import Rejected, Unreachable, decoded, request
from pdctl.engines.live import Running
from pdctl.engines.said import Hidden, Said, Stranger, ask
from pdctl.engines.sglang.live import INFO_BYTES
from pdctl.fleet.urls import authority
from pdctl.routers import READY_PATH

_INFO: Final = "/server_info"
_OLD: Final = "/get_server_info"
"""Routers have it as well, and hand on what one of their engines says there."""
_SIZES: Final = {
    "tp": "tp_size",
    "pp": "pp_size",
    "page_size": "page_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "backend": "disaggregation_transfer_backend",
}
_ALL_RANKS: Final = "/route?" + "&".join(
    f"{name}=-1" for name in ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
)


def say(running: Running, deadline: Deadline) -> Said:
    """From its resolved arguments. Raises Mute, Stranger."""
    try:
        info = ask(running, _INFO, deadline, INFO_BYTES)
        if info is None:
            if ask(running, READY_PATH, deadline) is not None:
                raise Stranger(f"{running.url}: a router answers there, no engine")
            info = ask(running, _OLD, deadline, INFO_BYTES)
    except Hidden as reason:
        return Said(hidden=str(reason))
    if not isinstance(info, Mapping) or "disaggregation_mode" not in info:
        raise Stranger(f"{running.url}{_INFO}: not what SGLang says there: no engine of SGLang's kind")
    mode, model = info["disaggregation_mode"], info.get("served_model_name")
    return Said(
        engine=_text(info.get("engine")) or "sglang",
        models=(model,) if isinstance(model, str) else None,
        role="aggregate" if mode in (None, "null") else _text(mode),
        version=_text(info.get("version")),
        sizes={name: value for name, key in _SIZES.items() if (value := _size(info.get(key))) is not None},
        registry_port=_port(info.get("disaggregation_bootstrap_port")) if mode == "prefill" else None,
    )


def registry(host: str, port: int, deadline: Deadline) -> tuple[bool | None, str]:
    """Whether decode engines find all ranks at the bootstrap server, and why not; None where that is not shown.

    Releases ask for ranks by other names: what answers and knows these not may be one of them, or another server.
    """
    url = f"http://{authority(host, port)}{_ALL_RANKS}"
    try:
        status, body = request(url, deadline_s=deadline.left())
        if status == 503:
            return False, f"{url}: HTTP 503: not all ranks have registered"
        return (True, "") if isinstance(decoded(url, status, body), Mapping) else (None, f"{url}: not an object")
    except Rejected as failure:
        return None, str(failure)
    except Unreachable as failure:
        return False, str(failure)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _size(value: Any) -> int | str | None:
    return value if isinstance(value, int | str) and not isinstance(value, bool) and value != "" else None


def _port(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 < value <= 65535 else None
