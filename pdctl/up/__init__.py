"""Bring-up: phases as data, and their runner."""
