"""The plugin inside vLLM: entry point `pdctl` in group `vllm.general_plugins`."""

from pdctl_transfer.plugins.guard import enabled


def register() -> None:
    """Called by vLLM at the start of each process."""
    if not enabled():
        return
