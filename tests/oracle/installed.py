"""Where an installed SGLang is, if any."""

import os
from pathlib import Path


def sglang_python() -> str | None:
    """PDCTL_SGLANG_PYTHON, or the Python of the environment that `make test-engines` builds; None where neither is."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = cache / "pdctl" / "envs" / "sglang" / "bin" / "python"
    return os.environ.get("PDCTL_SGLANG_PYTHON") or (str(built) if built.exists() else None)
