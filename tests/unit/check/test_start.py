"""What a check costs before it begins: it runs for every commit, and imports are most of it."""

import os
import subprocess
import sys
from pathlib import Path

from pdctl.python import environment, search_path

EXAMPLE = Path(__file__).parents[3] / "examples/qwen3-next-sglang.yaml"
HEAVY = {"torch", "numpy", "httpx", "httpcore", "psutil", "asyncio", "ctypes", "rich", "email", "tempfile"}
SCRIPT = "import sys; from pdctl.cli.app import main; main(sys.argv[1:]); print('|', *sys.modules)"


def test_a_check_imports_nothing_that_it_does_not_need() -> None:
    words = [sys.executable, "-P", "-c", SCRIPT, "check", str(EXAMPLE)]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    modules = ran.stdout.rpartition("|")[2].split()
    assert "pdctl.check.run" in modules
    assert HEAVY.intersection(module.partition(".")[0] for module in modules) == set()


def test_pydantics_plugins_of_other_packages_are_neither_looked_for_nor_run(tmp_path: Path) -> None:
    """Whatever is installed beside pdctl would run in each of its commands."""
    info = tmp_path / "stranger-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[pydantic]\nstranger = stranger:plugin\n")
    (tmp_path / "stranger.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nplugin = None\n")
    env = environment(os.environ, {"PYTHONPATH": search_path(str(tmp_path), os.environ.get("PYTHONPATH", ""))})
    subprocess.run([sys.executable, "-c", SCRIPT, "check", str(EXAMPLE)], env=env, capture_output=True, check=True)
    assert not (tmp_path / "ran").exists()
