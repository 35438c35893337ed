"""`pdctl init`: what it writes is a fleet that `check` finds nothing in, and it destroys nothing."""

import shutil
from itertools import product
from pathlib import Path

import pytest
import yaml

from pdctl.cli import app
from pdctl.fleet import load_fleet

MODELS = Path(__file__).parents[3] / "examples/models"


@pytest.mark.parametrize(
    ("engine", "model"),
    [("reference", None), *product(("sglang", "vllm"), sorted(path.name for path in MODELS.iterdir()))],
)
def test_what_is_written_passes_check(
    engine: str, model: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [] if model is None else ["--model", str(MODELS / model)]
    assert app.main(["init", "mine.yaml", "--engine", engine, *given]) == 0
    assert app.main(["check", "mine.yaml", "--fail-on", "warning"]) == 0, capsys.readouterr()
    fleet = load_fleet("mine.yaml").fleet
    assert (fleet.name, fleet.engine) == ("mine", engine)
    commented = [line.strip().removeprefix("# ") for line in Path("mine.yaml").read_text().splitlines()]
    pool = [line for line in commented if line.startswith(("args:", "environment:", "startup_s:", "kv_cache_dtype:"))]
    assert pool
    assert all(yaml.safe_load(line) for line in pool), "what is uncommented is YAML"


def test_every_commented_key_can_be_uncommented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for engine in ("sglang", "vllm", "reference"):
        model = [] if engine == "reference" else ["--model", str(MODELS / "Llama-3.1-70B-Instruct")]
        assert app.main(["init", f"{engine}.yaml", "--engine", engine, *model]) == 0
        lines = Path(f"{engine}.yaml").read_text().splitlines()
        keys = (
            "  # name:",
            "  # devices:",
            "  # args:",
            "  # environment:",
            "  # startup_s:",
            "  # kv",
            "  # host:",
            "  # port:",
        )
        opened = [line.replace("  # ", "  ", 1) if line.startswith(keys) else line for line in lines]
        assert opened != lines
        Path("open.yaml").write_text("\n".join(opened))
        load_fleet("open.yaml")


@pytest.mark.code("PD0023")
def test_nothing_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text("mine")
    Path("link.yaml").symlink_to("nowhere.yaml")
    for name in ("fleet.yaml", "link.yaml"):
        assert app.main(["init", name]) == 2
        assert f"error PD0023 {name}  is there already" in capsys.readouterr().err
    assert Path("fleet.yaml").read_text() == "mine"
    assert not Path("nowhere.yaml").exists()


@pytest.mark.code("PD0025")
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file, why in ((tmp_path / "no/f.yaml", "no such file"), (Path("/proc/f.yaml"), "")):
        assert app.main(["init", str(file)]) == 2
        assert "cannot be written: " + why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--engine", "vllm"], "--model  vllm needs a model"),
        (["--model", "/no/such"], "PD0011 --model  /no/such: no such folder"),
        (["--model", "{here}"], "there is no config.json in it"),
        (["--name", "Not A Name"], '--name  "Not A Name" is no name for a fleet'),
    ],
)
def test_what_cannot_become_a_fleet_is_refused(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.format(here=tmp_path) for word in words]
    assert app.main(["init", str(tmp_path / "f.yaml"), *given]) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["a b: c", "#odd", "it's", 'say "x"', "ünï", "- x", "a: b"])
def test_a_folder_of_any_name_is_read_back(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(MODELS / "Llama-3.1-70B-Instruct", tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    assert app.main(["init", "f.yaml", "--engine", "vllm", "--model", folder]) == 0
    assert load_fleet("f.yaml").fleet.model.path == str(tmp_path / folder)


def test_standard_output_takes_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["init", "-"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["name"] == "tiny-hybrid"
    assert not Path("-").exists()
