"""Fabrics move bytes between registered regions of two peers."""
