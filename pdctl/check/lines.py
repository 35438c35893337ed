"""Where in a manifest file its settings stand: the line of each, so that a finding can point at it."""

import re
from collections.abc import Mapping
from typing import Final

from pdctl_transfer.layout.manifest import SETTINGS
from pdctl_transfer.rules import Evidence

#: Dotted keys of a manifest and what rules call them.
NAMES: Final[Mapping[str, str]] = {
    "engine.name": "engine",
    "engine.version": "engine_version",
    "transfer.backend": "backend",
    "transfer.version": "transfer_version",
    "model.name": "model",
    "model.family": "family",
    "model.config_digest": "config_digest",
    "parallel.attn_tp": "attn_tp",
    "parallel.attn_cp": "attn_cp",
    "parallel.pp": "pp",
    "page_size": "page_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "kv_layout": "kv_layout",
    "speculative": "speculative",
    "model.values_digest": "values_digest",
    **{f"settings.{name}": name for name in SETTINGS},
}

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]')


def sources(data: bytes, file: str) -> dict[str, Evidence]:
    """The origin of each setting by its name. `data` is a manifest that was decoded; its stages are not read."""
    found: dict[str, Evidence] = {}
    path: list[str] = []
    depth = 0
    line, counted = 1, 0
    for token in _TOKEN.finditer(data):
        text = token[0]
        if text in (b"{", b"["):
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
            del path[max(depth - 1, 0) :]
        elif data[token.end() : token.end() + 64].lstrip().startswith(b":"):
            path = [*path[: depth - 1], text[1:-1].decode("utf-8", "replace")]
            if path == ["stages"]:
                break
            name = NAMES.get(".".join(path))
            if name is not None:
                line += data.count(b"\n", counted, token.start())
                counted = token.start()
                found[name] = Evidence(f"{file}:{line}", "")
    return found
