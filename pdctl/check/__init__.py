"""`pdctl check`: from fleet files and manifests to a verdict for every prefill and decode pair."""

from pdctl.check.run import Options, check, check_fleet

__all__ = ["Options", "check", "check_fleet"]
