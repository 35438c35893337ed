"""Phase `preflight`: everything that can be known before anything starts."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import Final

from pdctl.check.exposed import exposed
from pdctl.engines.base import Need
from pdctl.engines.builtin_models import PREFIX
from pdctl.engines.models import is_there, missing
from pdctl.engines.refusals import refuse
from pdctl.engines.words import no_answer
from pdctl.errors import ConfigError, FindingsError, GateError, InputError
from pdctl.launch.base import Unit
from pdctl.python import code, environment
from pdctl.up.context import Bringup
from pdctl.up.plan import located
from pdctl.up.ports import is_free, owner

ANSWER_S: Final = 30
"""In which an interpreter must say whether it has a package."""


def preflight(run: Bringup) -> str:
    """Engines on both sides, packages, libraries, model, free ports, layouts that fit. Raises the first that fails."""
    for role in ("prefill", "decode"):
        if not run.plan.of(role):
            message = f"{role}: no engine"
            raise InputError(message, where=run.loaded.where(role), code="PD0016", hint="give it `replicas: 1` or more")
    doubts = refuse(run.loaded)
    checked = check_needs(needs_of(run), run.loaded.where("model.path"))
    validate_flags(run)
    ports = check_ports(run, [unit for unit in run.plan.units if unit.name not in run.running])
    parts = [f"{checked} needs met", f"{ports} ports free", check_layouts(run)]
    if doubts:
        parts.append(f"{len(doubts)} flags that `pdctl check` does not know (PD0031)")
    if opened := sorted({finding.code for finding in exposed(run.loaded)}):
        parts.append(f"open to others without a key: {', '.join(opened)}")
    return ", ".join(parts)


def needs_of(run: Bringup) -> Iterator[Need]:
    """What the engines and the router need on this host, each once."""
    seen: set[Need] = set()
    with located(run.loaded):
        for one in run.plan.engines:
            seen.update(one.engine.needs(run.loaded.fleet, one.instance.pool))
    router = run.plan.router_kind
    yield from sorted(seen, key=lambda need: ("library", "package", "model").index(need.kind))
    yield Need("package", router.package, router.install)


def check_needs(needs: Iterable[Need], model_line: str | None = None) -> int:
    """How many needs are met. `model_line`: where the file names the model.

    Raises InputError: PD0011 a model, PD0012 a package, PD0013 a library; GateError PD0056 where an interpreter does
    not say in time whether it has a package.
    """
    wanted = list(needs)
    for need in wanted:
        if need.kind == "model" and not need.name.startswith(PREFIX) and not is_there(need.name):
            raise missing(need.name, model_line or need.name, need.remedy)
        if need.kind == "package" and not _importable(need.name, need.python):
            message = f"{need.name} is not installed for {need.python}"
            raise InputError(message, code="PD0012", hint=need.remedy)
        if need.kind == "library" and not _loadable(need.name):
            message = f"the system library {need.name} is missing"
            raise InputError(message, code="PD0013", hint=need.remedy)
    return len(wanted)


def _importable(package: str, python: str) -> bool:
    if python == sys.executable:
        try:
            return find_spec(package) is not None
        except ModuleNotFoundError:
            return False
    script = f"import importlib.util; sys.exit(importlib.util.find_spec({package!r}) is None)"
    try:
        status = subprocess.run(
            code(python, script), env=environment(os.environ), capture_output=True, check=False, timeout=ANSWER_S
        ).returncode
    except OSError:
        return False
    except subprocess.TimeoutExpired as error:
        raise no_answer(python, f"whether {package} is installed", ANSWER_S) from error
    return status == 0


def _loadable(soname: str) -> bool:
    try:
        ctypes.CDLL(soname)
    except OSError:
        return False
    return True


def validate_flags(run: Bringup) -> None:
    """Engines that can be asked parse their own command lines, one a pool. Raises InputError (PD3103)."""
    with located(run.loaded):
        for engine in {one.engine.name: one.engine for one in run.plan.engines}.values():
            ask = getattr(engine, "validate", None)
            if ask is not None:
                mine = {one.instance.pool.key: one.instance for one in run.plan.engines if one.engine is engine}
                ask(list(mine.values()))


def check_ports(run: Bringup, units: Iterable[Unit]) -> int:
    """How many ports are free, of the units that are to be started. Raises GateError (PD3002) for one that is not."""
    hosts = {one.unit.name: one.instance.host for one in run.plan.engines}
    own = {port for entry in run.leaving.values() for port in entry.ports.values()}
    count = 0
    for unit in units:
        for purpose, port in unit.ports.items():
            if port in own:
                continue  # held by what makes way for it
            count += 1
            if not is_free(hosts.get(unit.name, run.plan.router_host), port):
                who = owner(port)
                message = f"{unit.name}: port {port} ({purpose}) is in use" + (f" by {who}" if who else "")
                hint = "end it, or give another port in the fleet file"
                raise GateError(message, code="PD3002", hint=hint)
    return count


def check_layouts(run: Bringup) -> str:
    """Judge every pair as `pdctl check` does. Raises FindingsError (PD3020) with all that is wrong.

    A model whose config is not on this machine is not judged, and the note says so.
    """
    from pdctl.check import check_fleet

    try:
        report = check_fleet(run.loaded)
    except ConfigError as error:
        return f"layouts not judged: {error.message}"
    wrong = [finding for finding in report.findings if finding.severity == "error" and not finding.ignored]
    if wrong:
        found = "\n".join(f"  {one.code}  {one.subject}: {one.message}" for one in wrong)
        hint = f"`pdctl check {run.loaded.path}` says more; --skip-phase preflight starts them all the same"
        raise FindingsError(f"the layouts do not fit\n{found}", code="PD3020", hint=hint)
    unknown = sum(pair.verdict == "unknown" for pair in report.pairs)
    pairs = len(report.pairs)
    if unknown:
        return f"{unknown} of {pairs} pairs not judged"
    return "1 pair fits" if pairs == 1 else f"{pairs} pairs fit"
