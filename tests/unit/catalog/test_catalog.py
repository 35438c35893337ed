"""The catalog, its pages and its tests stay together."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pdctl.catalog import SECTIONS, entries, lookup, nearest, words
from pdctl_transfer.rules.outcome import Finding

ROOT = Path(__file__).resolve().parents[3]
CODE = re.compile(r"PD\d{4}")

#: The codes that the manifest contract fixes. They are never renumbered.
FIXED = [f"PD10{n:02}" for n in range(1, 22) if n not in (11, 17)]


def _marked_codes() -> set[str]:
    """Codes of every `@pytest.mark.code(...)`, and `pytest.param(..., marks=pytest.mark.code(...))`, of the tests."""
    return {code for path in (ROOT / "tests").rglob("test_*.py") for code in _codes_marked_in(path)}


def _codes_marked_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "code":
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def _emitted_codes() -> dict[str, Path]:
    """Every code that stands as a literal in the three packages."""
    found = {}
    for package in ("pdctl", "transfer/pdctl_transfer", "topology/pdctl_topology"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
                    found[node.value] = path.relative_to(ROOT)
    return found


def _gen_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_docs", ROOT / "tools" / "gen_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_emitted_code_has_words() -> None:
    """A finding without an entry would be a traceback instead of a report."""
    unknown = {code: path for code, path in _emitted_codes().items() if code not in entries()}
    assert not unknown


def test_every_code_has_a_test_that_triggers_it() -> None:
    """A code that nothing triggers is a promise that nobody has kept."""
    assert {code for code, entry in entries().items() if not entry.retired} - _marked_codes() == set()


def test_no_test_marks_a_code_that_is_not_there() -> None:
    """A marker with a slip of the pen would count for nothing."""
    assert _marked_codes() - set(entries()) == set()


def test_fixed_codes_are_there() -> None:
    """Contract codes are neither dropped nor renumbered."""
    assert set(FIXED) <= set(entries())


def test_pages_are_current() -> None:
    """`python tools/gen_docs.py` writes them."""
    assert _gen_docs().stale() == []


@pytest.mark.parametrize("code", entries())
def test_entry_is_well_formed(code: str) -> None:
    """Titles are phrases, texts are sentences, the number lies in a known section."""
    entry = lookup(code)
    assert CODE.fullmatch(code)
    assert entry.section in SECTIONS.values()
    assert entry.title == entry.title.strip().rstrip(".")
    assert not entry.title[0].isupper() or entry.title.split()[0] not in ("The", "A", "An")
    assert len(entry.title) <= 80
    for text in (entry.why, entry.action):
        assert text.rstrip()[-1] in ".})`?", text
        assert "\n" not in text.strip()


def test_one_table_is_read_as_the_whole_file_is() -> None:
    """`lookup` parses a code's table alone; both ways must agree."""
    for code, entry in entries().items():
        assert lookup(code) == entry


def test_words_are_filled_in_and_a_missing_one_stays_visible() -> None:
    """A report never fails on its own words."""
    assert (
        words(Finding("PD1001", "s", (), {"prefill": 1, "decode": 2})).message == "page size 1 on prefill, 2 on decode"
    )
    assert words(Finding("PD1001", "s")).message == "page size {prefill} on prefill, {decode} on decode"


def test_a_rule_may_say_another_severity() -> None:
    """PD1014 is an error where two versions are known not to work together."""
    assert words(Finding("PD1014", "s")).severity == "warning"
    assert words(Finding("PD1014", "s", (), {}, "error")).severity == "error"


@pytest.mark.parametrize(
    ("typed", "meant"), [("PD1010", "PD1010"), ("pd101", "PD1001"), ("PD-1001", "PD1001"), ("page size", "PD1001")]
)
def test_nearest(typed: str, meant: str) -> None:
    """A slip of the pen, or words of a title, find the code."""
    assert meant in nearest(typed)
