"""Clean-up that clean-up cannot stop: every step runs, whatever became of the others."""

from collections.abc import Callable, Iterable
from pathlib import Path

from pdctl.errors import PdctlError
from pdctl.launch.record import UnwritableError


def run_all(folder: Path, steps: Iterable[Callable[[], object]]) -> None:
    """Run all steps, then raise the gravest of their faults; `folder` is named where a disk took no state.

    Raises what a step raised: rather what could not be ended than what could not be recorded (PD3016).
    """
    faults: list[PdctlError] = []
    for step in steps:
        try:
            step()
        except OSError as error:
            faults.append(UnwritableError(folder, error))
        except PdctlError as error:
            faults.append(error)
    if faults:
        raise min(faults, key=lambda fault: isinstance(fault, UnwritableError))
