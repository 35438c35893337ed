"""A fleet file to start from: complete, commented, and such that `pdctl check` finds nothing in it."""

import json
import re
from pathlib import Path
from typing import Final, NamedTuple

from pdctl.fleet.names import NAME_PATTERN


class Engine(NamedTuple):
    """What a fleet of one engine begins with."""

    backend: str
    protocol: str
    router: str
    pool: str
    more: tuple[str, ...]
    """Commented settings that its users need sooner or later."""


ENGINES: Final = {
    "sglang": Engine(
        "mooncake",
        "rdma",
        "smg",
        "{replicas: 1, attn_tp: 1, page_size: 64}",
        (
            'args: [--mem-fraction-static, "0.85"]  # engine flags, one word an item',
            "environment: /opt/sglang  # virtual environment whose Python runs the engine",
        ),
    ),
    "vllm": Engine(
        "nixl",
        "rdma",
        "vllm-router",
        "{replicas: 1, attn_tp: 1}",
        (
            'args: [--gpu-memory-utilization, "0.9"]  # engine flags, one word an item',
            "environment: /opt/vllm  # virtual environment whose Python runs the engine",
        ),
    ),
    "reference": Engine(
        "mooncake",
        "tcp",
        "smg",
        "{replicas: 1, attn_tp: 1, page_size: 16}",
        ("kv_cache_dtype: float32  # as the engine spells it",),
    ),
}
_STARTUP: Final = "startup_s: 1800  # seconds until it answers"
_COLUMN: Final = 44
BUILTIN: Final = "builtin:tiny-hybrid"
"""The reference engine's model, which needs no download."""


def fleet_text(engine: str, model: str, name: str, file: str) -> str:
    """The file. `model`: a folder, or `builtin:NAME`; `file`: what its comments call it."""
    one = ENGINES[engine]
    values = {"engine": engine, "model": _quoted(model), "name": name, "file": file, **one._asdict()}
    values |= {"pool": _block(one.pool), "more": "\n".join(f"  # {line}" for line in (*one.more, _STARTUP))}
    return "".join(f"{_aligned(line)}\n" for line in _TEXT.format(**values).splitlines())


def _aligned(line: str) -> str:
    """Comments behind a key all begin in one column."""
    key, mark, words = line.rpartition("  # ")
    return f"{key.rstrip():<{_COLUMN}}# {words}" if mark and key.strip() else line


def name_for(path: Path, model: str) -> str:
    """A name for the fleet: the file's, unless that says nothing; else the model's."""
    for text in (path.stem if path.stem not in ("fleet", "pdctl", "-", "") else "", re.split("[/:]", model)[-1]):
        name = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")[:63].rstrip("-")
        if re.fullmatch(NAME_PATTERN, name):
            return name
    return "fleet"


def _block(pool: str) -> str:
    """`{a: 1, b: 2}` as lines of a mapping."""
    return "\n".join(f"  {item}" for item in pool.strip("{}").split(", "))


def _quoted(text: str) -> str:
    """As YAML reads it back: bare where that is safe."""
    return text if re.fullmatch(r"[A-Za-z/][\w/.:+-]*[\w/]", text) and ": " not in text else json.dumps(text)


_TEXT: Final = """\
# A fleet: prefill and decode engines of one model behind one router.
#   pdctl check {file}     will every pair work? Nothing needs to run for it.
#   pdctl up {file}        brings it up, phase by phase; again: to what this file says then
#   pdctl down {file}
# Every key: `pdctl schema`.
schema: pdctl.fleet/v1
name: {name}
model:
  path: {model}
  # name: as-clients-ask-for-it  # by default the last part of the path
engine: {engine}  # sglang | vllm | reference
transfer:
  backend: {backend}  # mooncake | nixl
  protocol: {protocol}  # rdma | tcp
  # devices: [mlx5_0, mlx5_1]  # by default the engine's choice; `pdctl discover` says which are near

prefill:
{pool}
{more}

# Further pools: a list of pools, each with a `name`.
decode:
{pool}
{more}

router:
  kind: {router}  # smg | sglang-router | vllm-router
  # host: 127.0.0.1  # the address it listens on
  # port: 30000  # by default a free one
"""
