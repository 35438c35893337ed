"""The routers that can stand before a fleet, as data: how each is started, what it takes, when it is ready."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from pdctl.python import module
from pdctl.routers.start import API_KEY, CONTROL_KEY

READY_PATH = "/readiness"
"""Not /health: that answers 200 with no decode engine at all."""

HEAL = (
    ("--worker-startup-check-interval", "1"),
    ("--health-check-interval-secs", "1"),
    ("--health-failure-threshold", "2"),
    ("--health-success-threshold", "1"),
    ("--cb-timeout-duration-secs", "2"),
    ("--cb-success-threshold", "1"),
)
"""So that a worker that comes back is used again within seconds. By default health is looked at once a minute, and a
failed request counts against both sides: the breaker of the healthy one stays open for a minute as well."""

LEAVE = ("--shutdown-grace-period-secs", "2")
"""An idle router waits this long before it ends; three minutes by default."""


class RouterKind(Struct, frozen=True):
    """One router program; its flags stand in the table of its name."""

    name: str
    launch: tuple[str, ...]
    package: str
    """The module that must be importable."""
    install: str
    pd: str
    """The switch for disaggregated serving."""
    flags: tuple[tuple[str, str], ...] = (*HEAL, LEAVE)
    bootstrap_ports: bool = True
    """Whether `--prefill URL` is followed by the bootstrap port."""
    connector_flag: str | None = None
    """The flag that names the transfer backend, where the router writes what travels between the two sides."""
    asks: bool = True
    """Whether it asks its clients for the key that it is given."""
    control: bool = True
    """Whether the calls that change its list of workers can have a key of their own."""
    takes_on: bool = True
    """Whether it takes on its list again what was taken off it."""
    engine_key: str | None = None
    """A further variable that it reads, where it sends engines another key than the one given."""

    def env(self, key: str | None, control: str | None) -> dict[str, str]:
        """The variables that hand it its keys."""
        given = {API_KEY: key, CONTROL_KEY: control if self.control else None}
        return {name: value for name, value in {**given, self.engine_key or API_KEY: key}.items() if value}


START: Final = "pdctl.routers.start"
"""Starts the module named after it, with the keys that no command line shows."""
KEY_FLAGS: Final = {
    "--api-key": "`router.api_key_env` names the environment variable with the key",
    "--control-plane-api-keys": "pdctl gives the router one; `control` in the fleet's folder holds it",
}
"""Flags that would show a key to everybody on the host, and what to write instead."""

ROUTERS = {
    kind.name: kind
    for kind in (
        RouterKind(
            "smg",
            module(sys.executable, START, "smg", "launch"),
            package="smg",
            install="pip install 'pdctl[router]'",
            pd="--pd-disaggregation",
        ),
        RouterKind(
            "sglang-router",
            module(sys.executable, START, "sglang_router.launch_router"),
            package="sglang_router",
            install="pip install sglang-router==0.3.2",
            pd="--pd-disaggregation",
        ),
        RouterKind(
            "vllm-router",
            module(sys.executable, START, "vllm_router.launch_router"),
            package="vllm_router",
            install="pip install vllm-router==0.1.17",
            pd="--vllm-pd-disaggregation",
            flags=(("--worker-startup-check-interval", "1"), ("--policy", "round_robin")),
            connector_flag="--kv-connector",
            asks=False,
            control=False,
            takes_on=False,  # 0.1.17: "PD router requires specific add_prefill_server or add_decode_server methods"
            engine_key="OPENAI_API_KEY",
        ),
    )
}


@dataclass(frozen=True)
class Backend:
    """An engine as a router sees it."""

    url: str
    bootstrap_port: int | None = None
    key: str | None = field(default=None, repr=False)
    """What it asks for."""


def router_argv(
    kind: RouterKind,
    prefill: Sequence[Backend],
    decode: Sequence[Backend],
    listen: tuple[str, int],
    metrics_port: int,
    args: Sequence[str],
    backend: str | None = None,
) -> tuple[str, ...]:
    """The router's command line. The operator's own flags come last, so that they win."""
    words = [*kind.launch, kind.pd, "--host", listen[0], "--port", str(listen[1])]
    for one in prefill:
        port = [str(one.bootstrap_port)] if kind.bootstrap_ports and one.bootstrap_port else []
        words += ["--prefill", one.url, *port]
    for one in decode:
        words += ["--decode", one.url]
    if kind.connector_flag and backend:
        words += [kind.connector_flag, backend]
    words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
    words += [word for pair in kind.flags for word in pair]
    return (*words, *args)
