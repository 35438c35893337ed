"""Clients that do not wait for what they asked for."""

import http.client
import json
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit


def leave(urls: Sequence[str], body: dict[str, Any], after_s: float) -> None:
    """Send a streaming request to each of these at once, and go away after that time."""
    open_ones = []
    for url in urls:
        where = urlsplit(url)
        connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=30)
        connection.request(
            "POST", "/v1/completions", json.dumps(body | {"stream": True}), {"Content-Type": "application/json"}
        )
        open_ones.append(connection)
    time.sleep(after_s)
    for connection in open_ones:
        connection.close()
