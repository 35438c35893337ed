"""`pdctl` with fake engines and a fake router: everything between the fleet file and the processes is real.

python -m tests.integration.up.driver up fleet.yaml
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from pdctl.engines.base import Command, Instance, Need, Readiness
from pdctl.engines.reference.adapter import ReferenceEngine
from pdctl.fleet.model import Fleet, Pool

FAKE = (sys.executable, str(Path(__file__).with_name("fake_server.py")))


class FakeEngine(ReferenceEngine):
    """The reference engine's dialect, spoken by a program that starts in a moment."""

    readiness = Readiness("/health", deadline_s=45)

    def needs(self, fleet: Fleet, pool: Pool) -> Sequence[Need]:
        return [Need("model", fleet.model.path, "write builtin:tiny-hybrid")]

    def command(self, instance: Instance) -> Command:
        pool = instance.pool
        words = ("--role", pool.role, "--port", str(instance.ports["http"]))
        return Command((*FAKE, *words, *pool.args), dict(pool.env))


def install() -> None:
    """Put the fakes in the places of the real ones, in this process."""
    from pdctl.routers import kinds
    from pdctl.up import plan

    plan.adapter = lambda name: FakeEngine()  # type: ignore[attr-defined]
    kinds.ROUTERS["smg"] = replace(kinds.ROUTERS["smg"], launch=(*FAKE, "--role", "router"), package="json")


def main() -> int:
    from pdctl.__main__ import main as pdctl

    install()
    return pdctl()


if __name__ == "__main__":
    sys.exit(main())
