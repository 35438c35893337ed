"""An engine or a router without a model: answers what a bring-up asks, and misbehaves on request.

python fake_server.py --role prefill|decode|aggregate|router --port N [--misbehave HOW]
  crash        end with status 3 before listening
  mute         listen, and answer 503 to every readiness question
  refuse       answer 500 to every request for tokens
  hang         never answer a request for tokens
  recompute    say that decode computed the prompt
  other        choose other tokens
  busy         say that a request is under way, for ever

--mute-if PATH: mute while that file is there.
"""

import argparse
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--misbehave", default="")
    parser.add_argument("--crash-if", type=Path, help="crash if this file exists")
    parser.add_argument("--mute-if", type=Path, help="mute while this file exists")
    given, _ = parser.parse_known_args()
    how = "crash" if given.crash_if and given.crash_if.exists() else given.misbehave
    print(f"fake {given.role} begins", flush=True)
    if how == "crash":
        print("out of imaginary memory", flush=True)
        sys.exit(3)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if how == "busy" and self.path == "/metrics":
                return self._send(200, b"sglang:num_running_reqs 1\n")
            mute = how == "mute" or (given.mute_if and given.mute_if.exists())
            return self._answer(503 if mute else 200, {})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if how == "hang":
                threading.Event().wait()
            tokens = [9, 9, 9] if how == "other" else [1, 2, 3]
            meta = {"prompt_tokens_computed": 7 if how == "recompute" else 0}
            text = "".join(map(str, tokens))
            body = {"output_ids": tokens, "meta_info": meta, "choices": [{"text": text}]}
            self._answer(500 if how == "refuse" else 200, body)

        def _answer(self, status: int, body: Any) -> None:
            self._send(status, json.dumps(body).encode())

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            print(format % args, flush=True)

    ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
