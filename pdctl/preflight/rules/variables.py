"""PD2208: no environment variable undoes what the fleet file asks for.

MC_FORCE_TCP turns RDMA off without a word, MC_LOG_DIR aborts the process that loads Mooncake into another with glog, a
UCX_TLS without a verbs transport leaves NIXL on TCP.
"""

from collections.abc import Callable, Iterator

from pdctl.preflight.snapshot import Snapshot, label
from pdctl.preflight.wants import Want
from pdctl_transfer.rules.outcome import Finding, Held, Outcome

VERBS = frozenset((
    "all", "ib", "rc", "rc_v", "rc_x", "rc_verbs", "rc_mlx5", "rc_gda", "dc", "dc_x", "dc_mlx5",
    "ud", "ud_v", "ud_x", "ud_verbs", "ud_mlx5", "srd", "gga", "gga_mlx5",
))  # fmt: skip
"""Transports of UCX that go by verbs, and the names for several of them."""


def _on(text: str) -> bool:
    return text.lower() not in ("", "0", "false", "no", "off")


def _lacks_verbs(text: str) -> bool:
    return not text.startswith("^") and not VERBS & set(text.split(","))


def _lacks_adapters(text: str) -> bool:
    return ("ib" in text[1:].split(",")) if text.startswith("^") else not {"ib", "all"} & set(text.split(","))


TRAPS: tuple[tuple[str, str, str | None, Callable[[str], bool], str], ...] = (
    ("MC_FORCE_TCP", "mooncake", "rdma", _on, "moves everything over TCP"),
    ("MC_LOG_DIR", "mooncake", None, _on, "aborts the engine: `You called InitGoogleLogging() twice!`"),
    ("UCX_TLS", "nixl", "rdma", _lacks_verbs, "names no verbs transport, so bytes go over TCP"),
    (
        "UCX_MODULES",
        "nixl",
        "rdma",
        _lacks_adapters,
        "leaves out UCX's module for adapters, so bytes go over TCP",
    ),
)
"""(variable, backend, protocol or any, whether a value springs the trap, what happens)."""


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One finding a variable and pool."""
    for want in snapshot.wants:
        sprung = list(_sprung(want))
        for variable, effect in sprung:
            params = {"variable": variable, "value": want.env[variable], "effect": effect}
            yield Finding("PD2208", label(want.host), (want.evidence(variable),), params)
        if not sprung:
            yield Held("variables", label(want.host), f"{want.pool}: none undoes {want.backend} over {want.protocol}")


def _sprung(want: Want) -> Iterator[tuple[str, str]]:
    for variable, backend, protocol, springs, effect in TRAPS:
        value = want.env.get(variable)
        if value is not None and backend == want.backend and protocol in (None, want.protocol) and springs(value):
            yield variable, effect
