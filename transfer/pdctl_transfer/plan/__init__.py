"""Address-free copy plans, their proof, and binding them to addresses. The only part of the core that needs numpy."""

from pdctl_transfer.plan.bind import Blocks, bind
from pdctl_transfer.plan.columns import Columns, Line, Plan, PlannedPair, RankId, Stats
from pdctl_transfer.plan.planner import make_plan

__all__ = ["Blocks", "Columns", "Line", "Plan", "PlannedPair", "RankId", "Stats", "bind", "make_plan"]
