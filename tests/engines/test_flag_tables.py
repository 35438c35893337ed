"""The flag tables against the real engines' own parsers: what one takes the other takes."""

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest

from pdctl.flags import load, read_words
from pdctl.python import code
from tests.engines.fleets import ROOT

pytestmark = pytest.mark.engines


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_table_is_what_the_engines_parser_says(engine: str) -> None:
    """A flag that the table lacks would be refused though the engine takes it."""
    tool = [sys.executable, str(ROOT / "tools" / "flag_tables.py"), engine, "--check"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


TAKEN = {
    "sglang": (["--tp", "1"], ["--page-si", "4"], ["--cuda-graph-bs-decode", "1", "2"], ["--nsa-pre=x"], ["--pp", "1"]),
    "vllm": (
        ["--block_size=16"],
        ["-tp", "1"],
        ["-O3"],
        ["--speculative-config.method", "ngram"],
        ["--max-model-le=9"],
    ),
}


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("place", range(5))
def test_spellings_are_taken_as_the_engine_takes_them(engine: str, place: int) -> None:
    words = TAKEN[engine][place]
    assert _parses(engine, words) == (read_words(load(engine), words).faults == ())


def _parses(engine: str, words: Sequence[str]) -> bool:
    """Whether the engine's own parser knows all of the words; what they mean together is not asked."""
    python = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "engine_envs.py"), engine, "--print-python"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    parser = {
        "sglang": "import argparse\nfrom sglang.srt.server_args import ServerArgs\n"
        "parser = argparse.ArgumentParser()\nServerArgs.add_cli_args(parser)\nfirst = ['--model-path', 'm']\n",
        "vllm": "from vllm.entrypoints.launchers.cli_args import make_arg_parser\n"
        "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
        "parser = make_arg_parser(FlexibleArgumentParser())\nfirst = ['m']\n",
    }[engine]
    script = parser + "import json, sys\nparser.parse_args([*first, *json.loads(sys.stdin.read())])\n"
    done = subprocess.run(code(python, script), input=json.dumps(words), capture_output=True, text=True, check=False)
    return done.returncode == 0
