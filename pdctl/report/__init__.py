"""Reports and their renderers."""
