"""On how many nodes each engine of a recipe runs: by the accelerators that it takes, else by the nodes of its role."""

from collections.abc import Iterator, Mapping
from typing import Any

from pdctl.recipes.left import Left


def nodes_of(resources: Mapping[str, Any], role: str) -> int | None:
    """Nodes of one engine; None where the nodes of the role do not divide over its engines."""
    gpus, here = _number(resources.get(f"gpus_per_{role}")), _number(resources.get("gpus_per_node"))
    if gpus and here:
        return -(-gpus // here)
    nodes, engines = _number(resources.get(f"{role}_nodes")), _number(resources.get(f"{role}_workers", 1))
    if not nodes or not engines or nodes <= engines:
        return 1
    return nodes // engines if nodes % engines == 0 else None


def carried(resources: Mapping[str, Any], roles: tuple[str, ...]) -> Iterator[str]:
    """Keys of `resources` that `nodes` stands for: all that are numbers, where each engine's nodes are known."""
    known = [role for role in roles if nodes_of(resources, role) is not None]
    keys = [f"{name}" for role in known for name in (f"{role}_nodes", f"gpus_per_{role}")]
    keys += ["gpus_per_node"] if len(known) == len(roles) else []
    yield from (f"resources.{key}" for key in keys if _number(resources.get(key)) is not None)


def unplaced(resources: Mapping[str, Any], roles: tuple[str, ...]) -> Iterator[Left]:
    """Roles whose nodes do not divide over their engines."""
    for role in roles:
        if nodes_of(resources, role) is None:
            yield Left(f"{role} engine", f"{resources.get(f'{role}_nodes')} nodes do not divide over its engines")


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
