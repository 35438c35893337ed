"""`tools/engine_facts.py` on wheels made here: what it reads, and what it says of a release that changes something."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

TOOL = Path(__file__).resolve().parents[3] / "tools" / "engine_facts.py"
NIXL = "sglang/srt/disaggregation/nixl/conn.py"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool, writing beside the test."""
    spec = importlib.util.spec_from_file_location("engine_facts", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "engine_facts", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RELEASES", tmp_path / "releases.json")
    return module


def _wheel(folder: Path, version: str, source: str) -> str:
    path = folder / f"sglang-{version}-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        archive.writestr(NIXL, source)
    return str(path)


def test_a_change_is_kept_once_and_a_new_release_names_the_rules(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sources are read and never run: this one would raise. Releases count by number, comments and lines do not."""
    raises = "raise SystemExit\nclass A:\n    def _send_mamba_state(self):\n        pass\n"
    wheels = [_wheel(tmp_path, version, raises) for version in ("0.5.10", "0.5.9")]
    wheels.append(_wheel(tmp_path, "0.5.11", f"# moved\n\n{raises}"))
    assert tool.main(wheels) == 0
    found = json.loads((tmp_path / "releases.json").read_text())["sglang"]
    assert found["read"] == ["0.5.9", "0.5.10", "0.5.11"]
    assert found["facts"]["nixl.state"] == {"0.5.9": ["_send_mamba_state"]}
    assert tool.main(["--against", _wheel(tmp_path, "0.5.12", raises)]) == 0
    changed = _wheel(tmp_path, "0.5.13", raises.replace("_state", "_state_slice"))
    assert tool.main(["--against", changed]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[-1].startswith("sglang 0.5.13: nixl.state is another")
    assert "PD1005" in said[-1]
