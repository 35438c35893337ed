"""SGLang: from a request to the manifest of what it registers."""

from pdctl.derive.sglang.build import build

__all__ = ["build"]
