"""The layout of a running SGLang engine.

With the plugin: the manifest of what the engine registered, from a prefill's bootstrap server (all stages) or from
`/server_info`. Without it: derived from the arguments that the engine resolved, which `/server_info` shows, and its
model's config.json where that lies on this host.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from pdctl.engines.deadline import Deadline
from pdctl.engines.http import LIMIT_BYTES, Unreachable, get_json
from pdctl.engines.live import CollectError, Running, config_of, from_url
from pdctl.errors import InputError
from pdctl.fleet.urls import authority, host_of
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.layout.read import decode_manifest
from pdctl_transfer.plugins.peer import ROUTE

INFO_BYTES: Final = 2 * LIMIT_BYTES
"""Each rank's layout and last events are in it."""


def collect(running: Running, timeout_s: float) -> Manifest:
    """The engine's layout. Raises CollectError with every way that was tried, or ManifestError."""
    deadline = Deadline(timeout_s)
    if "bootstrap" in running.places:
        layout = from_url(f"http://{authority(*running.places['bootstrap'])}{ROUTE}", deadline.left())
        if layout is not None:
            return layout
    return _from_server_info(running, deadline)


def _from_server_info(running: Running, deadline: Deadline) -> Manifest:
    url = f"{running.url}/server_info"
    try:
        info = get_json(url, deadline.left(), key=running.key, limit_bytes=INFO_BYTES)
    except Unreachable as failure:
        raise CollectError(str(failure)) from failure
    if not isinstance(info, Mapping):
        raise CollectError(f"{url}: not an object")
    states = info.get("internal_states")
    inner = states[0] if isinstance(states, list) and states and isinstance(states[0], Mapping) else {}
    stages = _at_registry(running, info, deadline.left())
    if stages is not None:
        return stages
    plugin = inner.get("pdctl")
    if isinstance(plugin, Mapping) and "layout" in plugin:
        try:
            return decode_manifest(json.dumps(plugin["layout"]).encode(), url)
        except RecursionError as failure:
            raise CollectError(f"{url}: nested too deeply") from failure
    return resolved(running, info, url)


def _at_registry(running: Running, info: Mapping[str, Any], deadline_s: float) -> Manifest | None:
    """All stages, from the bootstrap server that the engine names, where nobody says where it is.

    It may listen for its own network alone, and then the rank that was asked has to do.
    """
    port, stages = info.get("disaggregation_bootstrap_port"), info.get("pp_size")
    if running.role != "prefill" or "bootstrap" in running.places or not isinstance(port, int) or stages in (None, 1):
        return None
    try:
        return from_url(f"http://{authority(host_of(str(running.url)), port)}{ROUTE}", deadline_s)
    except CollectError:
        return None


def resolved(running: Running, info: Mapping[str, Any], url: str) -> Manifest:
    """The layout that the engine's own resolved arguments give. CollectError where that cannot be said."""
    from pdctl.derive import Request, derive

    path, role = info.get("model_path"), info.get("disaggregation_mode")
    if not isinstance(path, str) or role not in ("prefill", "decode"):
        raise CollectError(f"{url}: no pdctl plugin in this engine, and it is no side of a pair ({role})")
    try:
        config, source = config_of(running, path)
        derived = derive(
            Request(
                engine="sglang",
                role=role,
                config=config,
                config_source=source,
                model_name=str(info.get("served_model_name") or path).rstrip("/").rsplit("/", 1)[-1],
                tp=_size(info, "tp_size"),
                pp=_size(info, "pp_size"),
                dp=_size(info, "attn_dp_size"),
                cp=_size(info, "attn_cp_size"),
                page_size=_size(info, "page_size"),
                kv_cache_dtype=str(info.get("kv_cache_dtype") or "auto"),
                backend=str(info.get("disaggregation_transfer_backend") or "mooncake"),
                engine_version=str(info["version"]) if info.get("version") else None,
            )
        )
    except InputError as failure:
        raise CollectError(f"{url}: no pdctl plugin in this engine, and {failure}") from failure
    return replace(derived.manifest, origin="live")


def _size(info: Mapping[str, Any], name: str) -> int:
    value = info.get(name)
    return value if isinstance(value, int) and value > 0 else 1
