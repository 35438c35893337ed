"""Launchers start, watch and stop units; they know no engine."""
