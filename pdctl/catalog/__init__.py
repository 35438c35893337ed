"""The one catalog of codes."""
