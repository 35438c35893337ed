"""Flag tables are what the programs' own parsers say; those of the real engines are held in `make test-engines`."""

import sys
from pathlib import Path

import pytest

from pdctl.flags import load
from pdctl.flags.table import FOLDER, elsewhere

TOOLS = Path(__file__).parents[3] / "tools"


@pytest.mark.parametrize("program", ["reference", "smg", "sglang-router", "vllm-router"])
def test_a_table_is_what_the_installed_program_says(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag that the table does not have would be refused though the program takes it."""
    monkeypatch.syspath_prepend(str(TOOLS))
    monkeypatch.delitem(sys.modules, "flag_tables", raising=False)
    import flag_tables  # type: ignore[import-not-found]

    version, text = flag_tables.table(program)
    assert (FOLDER / f"{program}-{version}.json").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("program", ["reference", "sglang", "vllm", "smg", "sglang-router", "vllm-router"])
def test_a_table_has_each_spelling_once(program: str) -> None:
    table = load(program)
    spellings = [name for flag in table.flags for name in flag.names]
    assert len(spellings) == len(set(spellings)) > 20
    assert "--help" in spellings
    assert table.flag("--help").ends  # type: ignore[union-attr]
    assert not set(elsewhere(program)) & set(spellings)


def test_flags_of_other_versions_are_known_as_such() -> None:
    """People run other versions than the table's; what those had is no slip of the pen."""
    assert elsewhere("sglang")["--cuda-graph-max-bs"] == ("0.5.2", "0.5.19")
    assert "--swap-space" in elsewhere("vllm")
