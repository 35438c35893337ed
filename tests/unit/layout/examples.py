"""The contract's example manifests."""

from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "data" / "layout"
EXAMPLES = {path.stem: path for path in _FOLDER.glob("*.json")}
assert EXAMPLES
