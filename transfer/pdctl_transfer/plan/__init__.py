"""Address-free copy plans, their proof, and binding them to addresses. The only part of the core that needs numpy."""

from pdctl_transfer.plan.columns import Columns, Line, Plan, PlannedPair, RankId, Stats
from pdctl_transfer.plan.planner import make_plan

__all__ = ["Columns", "Line", "Plan", "PlannedPair", "RankId", "Stats", "make_plan"]
