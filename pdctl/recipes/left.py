"""What a conversion does not carry: each line with its reason, so that nothing is dropped in silence."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct


class Left(Struct, frozen=True):
    """A line of the recipe that the fleet does not hold: its dotted key, and why."""

    key: str
    why: str


JOB: Final = "of the job, not of the fleet"
ROUTER: Final = "of the router's own deployment, not of what it says to engines"
NO_FIELD: Final = "the fleet file has no field for it"

#: Sections beside the engines, and why a fleet does not hold them.
SECTIONS: Final[Mapping[str, str]] = {
    "benchmark": JOB,
    "dynamo": ROUTER,
    "extra_mount": JOB,
    "frontend": ROUTER,
    "health_check": JOB,
    "infra": ROUTER,
    "profiling": JOB,
    "resources": "of the nodes, not of an engine",
    "sbatch_directives": JOB,
    "setup_script": JOB,
    "slurm": JOB,
    "srun_options": JOB,
    "telemetry": JOB,
}


def all_of(value: Any, key: str, why: str) -> Iterator[Left]:
    """Every line at or below a key: leaves of mappings, a list as one."""
    if isinstance(value, Mapping) and value:
        for name, one in value.items():
            yield from all_of(one, f"{key}.{name}" if key else str(name), why)
    else:
        yield Left(key, why)
