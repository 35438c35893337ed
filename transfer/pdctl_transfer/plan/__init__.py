"""Address-free copy plans, their proof, and binding them to addresses. The only part of the core that needs numpy."""

from pdctl_transfer.blocks import Blocks
from pdctl_transfer.plan.bind import Binding, bind
from pdctl_transfer.plan.columns import Columns, Line, Plan, PlannedPair, RankId, Stats
from pdctl_transfer.plan.flat import Damage, flat_damage
from pdctl_transfer.plan.planner import make_plan
from pdctl_transfer.plan.prove import Fault, Proof, prove

__all__ = [
    "Binding",
    "Blocks",
    "Columns",
    "Damage",
    "Fault",
    "Line",
    "Plan",
    "PlannedPair",
    "Proof",
    "RankId",
    "Stats",
    "bind",
    "flat_damage",
    "make_plan",
    "prove",
]
