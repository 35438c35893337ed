"""Every Python is started as `pdctl/python.py` spells it, and every process gets an environment that is said."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = [path for folder in ("pdctl", "transfer", "topology", "tools") for path in (ROOT / folder).rglob("*.py")]
SWITCHES = ("-m", "-c", "-I", "-P")
PLACE = ROOT / "pdctl" / "python.py"


def _words(tree: ast.AST) -> Iterator[list[ast.expr]]:
    """What may be a command line: lists, tuples, the arguments of a call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            yield node.elts
        if isinstance(node, ast.Call):
            yield node.args


def _starts(before: ast.expr, word: ast.expr) -> bool:
    """A switch of Python's after a word that is no literal; a lone dash, which may be a table's, after a Python."""
    if not isinstance(word, ast.Constant) or isinstance(before, ast.Constant):
        return False
    return word.value in SWITCHES or (word.value == "-" and bool(re.search("python|executable", ast.unparse(before))))


def _spellings(source: str) -> list[int]:
    """Lines that spell how a Python is started."""
    return [
        words[0].lineno
        for words in _words(ast.parse(source))
        for before, word in pairwise(words)
        if _starts(before, word)
    ]


@pytest.mark.parametrize(
    "source",
    ['run([sys.executable, "-m", "x"])', 'run(str(python), "-c", "x")', 'x = (python, "-")', '[*p, "-m", "x"]'],
)
def test_a_start_that_is_spelled_by_hand_is_seen(source: str) -> None:
    assert _spellings(source) == [1]


def test_no_python_is_started_in_another_spelling() -> None:
    assert len(SOURCES) > 300
    others = [path for path in SOURCES if path != PLACE]
    found = {path.relative_to(ROOT).as_posix(): _spellings(path.read_text()) for path in others}
    assert {path: lines for path, lines in found.items() if lines} == {}
    assert _spellings(PLACE.read_text())


def test_every_process_gets_an_environment_that_is_said() -> None:
    """Without `env` a child inherits a PYTHONPATH that may name the current folder."""
    bare = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("subprocess.run", "subprocess.Popen"):
                named = {keyword.arg for keyword in node.keywords}
                if "env" not in named and "pdctl" in path.parts:
                    bare.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert bare == []
