"""vLLM: from a request to the manifest of the regions its connectors register."""

from pdctl.derive.vllm.build import build

__all__ = ["build"]
