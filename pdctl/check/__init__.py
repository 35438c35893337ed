"""Collectors, the frozen snapshot and the fleet rules."""
