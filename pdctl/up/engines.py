"""Phases `core`, `prefill`, `decode` and `others`: the engines, and the transfer core that they load."""

from pdctl.launch.state import ROUTER
from pdctl.up.context import Bringup, Gate
from pdctl.up.drain import make_way
from pdctl.up.plan import EngineUnit
from pdctl.up.wait import start_and_wait


def ship_core(run: Bringup) -> str:
    """One transfer core for all engines of a family."""
    families = {one.engine.name: one.engine for one in run.plan.engines}
    notes = [
        engine.ship_core([pool for pool in run.loaded.pools() if (pool.engine or run.loaded.fleet.engine) == name])
        for name, engine in families.items()
    ]
    return "; ".join(notes)


def start_prefill(run: Bringup) -> str:
    """All prefill engines, at once."""
    make_way(run, "prefill")
    return start_and_wait(run, [gate_of(one) for one in run.plan.of("prefill")])


def start_decode(run: Bringup) -> str:
    """All decode engines, at once."""
    make_way(run, "decode")
    return start_and_wait(run, [gate_of(one) for one in run.plan.of("decode")])


def start_others(run: Bringup) -> str:
    """Engines of every further role, at once."""
    for role in other_roles(run):
        make_way(run, role)
    return start_and_wait(run, [gate_of(one) for one in others(run)])


def others(run: Bringup) -> list[EngineUnit]:
    """Engines that are neither prefill nor decode."""
    return [one for one in run.plan.engines if one.instance.role not in ("prefill", "decode")]


def other_roles(run: Bringup) -> list[str]:
    """Their roles, also those of which none is wanted any more."""
    leaving = (entry.role for entry in run.leaving.values())
    roles = dict.fromkeys([*(one.instance.role for one in others(run)), *leaving])
    return [role for role in roles if role not in ("prefill", "decode", ROUTER)]


def gate_of(one: EngineUnit) -> Gate:
    """The gate of a single engine."""
    readiness = one.engine.readiness
    deadline_s = one.instance.pool.startup_s or readiness.deadline_s
    return Gate(one.unit, one.instance.url + readiness.path, deadline_s, one.engine.stage, one.instance.key)
