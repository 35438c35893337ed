"""Every field of the fleet file changes what is started or judged, or is refused: no key does nothing in silence."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdctl.engines import adapter
from pdctl.engines.base import Instance
from pdctl.engines.refusals import launcher_faults, refuse
from pdctl.errors import InputError
from pdctl.fleet import parse_fleet
from pdctl.fleet.model import Fleet, Launcher, Model, Pool, Router, Transfer

#: Another value than the default for each field of a pool.
POOL: dict[str, Any] = {
    "name": "other",
    "replicas": 2,
    "urls": ["http://10.0.0.7:30000"],
    "hosts": ["node-7"],
    "engine": None,
    "served_name": "another",
    "engine_version": "0.5.16",
    "image": "lmsysorg/sglang:v0.5.16",
    "environment": "/opt/env",
    "attn_tp": 2,
    "pp": 2,
    "dp": 2,
    "cp": 2,
    "page_size": 64,
    "kv_cache_dtype": "fp8_e4m3",
    "speculative": {"algorithm": "NEXTN"},
    "args": ["--log-level", "debug"],
    "env": {"A": "1"},
    "ports": {"http": 31999},
    "devices": ["3"],
    "startup_s": 7,
    "nodes": 2,
    "network": "own",
    "dist_init_address": ["10.0.0.7"],
    "ep": 2,
    "dp_local": [2],
    "load_balancing": "hybrid",
    "api_key_env": "KEY",
    "transfer": {"core": "pdctl"},
}
TRANSFER: dict[str, Any] = {
    "backend": "nixl",
    "protocol": "rdma",
    "devices": ["mlx5_7"],
    "options": {"verify": "full"},
    "core": "pdctl",
    "session": {"verify": "full"},
}
#: Fields that are read elsewhere than in command lines: by whom, which the tests of that part show.
ELSEWHERE = {
    "hosts": "the launcher (PD3116), preflight",
    "nodes": "the plan, which gives each node flags of its own (test_nodes)",
    "startup_s": "the gate of `up`",
    "engine_version": "rules and the flag reader",
    "engine": "the choice of the adapter",
    "api_key_env": "`up`, which hands the key over (test_keys)",
    "transfer": "the choice of a way, which takes both sides (test_core)",
}


def document(engine: str, **changes: Any) -> dict[str, Any]:
    base = {
        "schema": "pdctl.fleet/v1",
        "name": "f",
        "model": {"path": "models/M"},
        "engine": engine,
        "transfer": {"backend": "mooncake", "protocol": "tcp"},
        "prefill": {},
        "decode": {},
    }
    return base | changes


def outcome(made: dict[str, Any]) -> Any:
    """The command of each engine, or the code with which the file is refused."""
    try:
        loaded = parse_fleet(yaml.safe_dump(made).encode(), Path("f.yaml"))
        refuse(loaded)
        if faults := list(launcher_faults(loaded)):
            return faults[0].code
        engines = []
        for pool in loaded.pools():
            engine = adapter(pool.engine or loaded.fleet.engine)
            ports = {purpose: 9000 + n for n, purpose in enumerate(engine.purposes(pool))} | pool.ports
            instances = (
                Instance(name, pool, loaded.fleet, loaded.model_path, "127.0.0.1", ports) for name in pool.members
            )
            engines += [(one.name, engine.command(one)) for one in instances]
    except InputError as error:
        return error.code
    return engines


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for engine in ("SGLANG", "VLLM"):
        monkeypatch.delenv(f"PDCTL_{engine}_PYTHON", raising=False)


def fields() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each field by its key, and the changes that give it another value."""
    for name, value in POOL.items():
        yield f"pool.{name}", {"prefill": {name: value}}
    for name, value in TRANSFER.items():
        base = {"backend": "mooncake", "protocol": "rdma" if name == "devices" else "tcp"}
        yield f"transfer.{name}", {"transfer": base | {name: value}}
    yield "model.path", {"model": {"path": "models/N"}}
    yield "model.name", {"model": {"path": "models/M", "name": "served"}}


def test_every_field_of_the_schema_has_a_sample() -> None:
    """A field that is added must say here what it changes."""
    assert set(POOL) == set(Pool.model_fields)
    assert set(TRANSFER) == set(Transfer.model_fields)
    assert set(Model.model_fields) == {"path", "name", "draft"}
    assert set(Launcher.model_fields) == {"kind"}
    assert set(Router.model_fields) == {"kind", "host", "port", "args", "env", "api_key_env", "url", "log"}
    known = {"schema_", "name", "model", "engine", "engine_version", "transfer", "launcher", "prefill", "decode"}
    assert set(Fleet.model_fields) == known | {"roles", "router", "network"}


HERE = [
    pytest.param(engine, key, changes, id=f"{engine}-{key}")
    for engine in ("reference", "sglang", "vllm")
    for key, changes in fields()
    if key.removeprefix("pool.") not in ELSEWHERE
]


@pytest.mark.parametrize(("engine", "key", "changes"), HERE)
def test_a_field_is_read_or_refused(engine: str, key: str, changes: dict[str, Any]) -> None:
    before = document(engine)
    if key.startswith("transfer."):
        before["transfer"] = {**before["transfer"], "protocol": changes["transfer"]["protocol"]}
        if key == "transfer.protocol":
            before["transfer"]["protocol"] = "tcp"
    assert outcome(document(engine, **changes)) != outcome(before), f"{key} does nothing for {engine}"
