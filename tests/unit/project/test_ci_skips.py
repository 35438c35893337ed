"""A test that is skipped in CI without being listed must fail the run."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).parents[2] / "conftest.py"


@pytest.mark.parametrize(
    "source",
    [
        "import pytest\ndef test_it():\n    pytest.skip('no')\n",
        "import pytest\npytest.skip('no', allow_module_level=True)\n",
    ],
    ids=["test", "module"],
)
@pytest.mark.parametrize(("ci", "allowed", "fails"), [("true", False, True), ("true", True, False), ("", False, False)])
def test_unlisted_skip_fails_only_in_ci(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, source: str, ci: str, allowed: bool, fails: bool
) -> None:
    monkeypatch.setenv("CI", ci)
    pytester.makeconftest(CONFTEST.read_text(encoding="utf-8"))
    node = "test_x.py::test_it" if "def test_it" in source else "test_x.py"
    listing = f'"{node}" = "needs a thing"\n' if allowed else ""
    pytester.path.joinpath("allowed_skips.toml").write_text(listing, encoding="utf-8")
    pytester.makepyfile(test_x=source)
    result = pytester.runpytest_inprocess()
    outcomes = result.parseoutcomes()
    assert bool(outcomes.get("failed", 0) + outcomes.get("errors", 0)) == fails
