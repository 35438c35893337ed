"""Routers in front of a fleet, as data."""
