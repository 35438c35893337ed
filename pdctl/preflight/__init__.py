"""Judges the hosts that a fleet is to run on: collectors → frozen snapshot → rules → findings."""
