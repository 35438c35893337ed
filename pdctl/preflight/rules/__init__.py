"""The rules of `preflight`: pure functions of a snapshot, one file each, listed here in the order of the report."""

from collections.abc import Callable, Iterator

from pdctl.preflight.rules import (
    accelerators,
    addresses,
    clock,
    container,
    device_fit,
    device_map,
    device_named,
    device_places,
    device_port,
    device_spelling,
    devices,
    gid_index,
    gid_scan,
    integrated,
    interfaces,
    libraries,
    link_layer,
    memlock,
    mtu,
    nearness,
    packages,
    peermem,
    ports,
    rails,
    reach,
    roles,
    router_flags,
    routes,
    ucx_modules,
    variables,
    versions,
)
from pdctl.preflight.snapshot import Snapshot
from pdctl.report.build import spans
from pdctl_transfer.rules.outcome import Held, Outcome

Rule = Callable[[Snapshot], Iterator[Outcome]]

RULES: tuple[Rule, ...] = (
    reach.check,
    devices.check,
    device_named.check,
    device_spelling.check,
    device_places.check,
    device_map.check,
    device_port.check,
    device_fit.check,
    gid_index.check,
    gid_scan.check,
    link_layer.check,
    rails.check,
    routes.check,
    interfaces.check,
    nearness.check,
    mtu.check,
    memlock.check,
    peermem.check,
    integrated.check,
    accelerators.check,
    packages.check,
    libraries.check,
    ucx_modules.check,
    versions.check,
    variables.check,
    roles.check,
    addresses.check,
    ports.check,
    router_flags.check,
    container.check,
    clock.check,
)


def judge(snapshot: Snapshot) -> tuple[Outcome, ...]:
    """Every rule's outcomes, each once: several pools of one host often say the same, and so do equal hosts."""
    found: dict[str, Outcome] = {}
    held: dict[tuple[str, str], list[str]] = {}
    for outcome in (outcome for rule in RULES for outcome in rule(snapshot)):
        if isinstance(outcome, Held):
            held.setdefault((outcome.rule, outcome.saw), []).append(outcome.subject)
        else:
            found[repr(outcome)] = outcome
    same = (Held(rule, spans(list(dict.fromkeys(subjects))), saw) for (rule, saw), subjects in held.items())
    return (*found.values(), *same)
