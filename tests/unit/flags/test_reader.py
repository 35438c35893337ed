"""The reader against argparse itself: what one takes the other takes, with the same values."""

import argparse
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.flags import Flag, Reading, Table, load, read

KINDS: dict[str, Any] = {"text": str, "int": int, "float": float}


class Refused(Exception):
    """argparse did not take the words."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise Refused(message)

    def exit(self, status: int = 0, message: str | None = None) -> Any:
        raise Refused(message or "it ended")


def parser_of(table: Table) -> Parser:
    """A parser with the table's flags; each mention is kept."""
    parser = Parser(add_help=False, allow_abbrev=table.abbreviations)
    for flag in table.flags:
        if flag.ends:
            parser.add_argument(*flag.names, action="help")
        elif flag.takes == 0:
            parser.add_argument(*flag.names, action="append_const", const=(), dest=flag.name)
        else:
            nargs = None if flag.takes == 1 else flag.takes
            choices = None if flag.choices is None else [KINDS[flag.kind](one) for one in flag.choices]
            parser.add_argument(
                *flag.names, action="append", nargs=nargs, type=KINDS[flag.kind], choices=choices, dest=flag.name
            )
    return parser


def mentions(reading: Reading) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for one in reading.given:
        values: Any = [KINDS[one.flag.kind](value) for value in one.values]
        if one.flag.takes == 0:
            values = ()
        elif one.flag.takes == 1:
            (values,) = values
        elif one.flag.takes == "?":
            values = values[0] if values else None
        found.setdefault(one.name, []).append(values)
    return found


SMALL = Table(
    "small",
    "1",
    abbreviations=True,
    flexible=False,
    flags=(
        Flag(("--tp-size", "--tp", "-t"), kind="int"),
        Flag(("--page-size",), kind="int"),
        Flag(("--page-shape",), choices=("a", "b")),
        Flag(("--ratio",), kind="float"),
        Flag(("--enable", "--no-enable"), takes=0),
        Flag(("--graph-sizes",), takes="+", kind="int"),
        Flag(("--names",), takes="*"),
        Flag(("--level",), takes="?"),
        Flag(("--pair",), takes=2),
        Flag(("-h", "--help"), takes=0, ends=True),
    ),
)
STRICT = Table("small", "1", abbreviations=False, flexible=False, flags=SMALL.flags)
SPOKEN = """
--tp-size --tp -t --tp-s --tp=3 --tp-size=x --page --page-si --page-size --page-shape --page-shape=b --ratio --rat
--enable --no-en --enable=1 --graph-sizes --names --names= --level --pair --help --nope --nope=1 -n - --en --no-enable
--level=2 0.5 -0.5 -4 4 a b 1 2
"""
WORDS = st.sampled_from([*SPOKEN.split(), "", "x y", "-x y"])


@settings(max_examples=500, deadline=None)
@given(st.lists(WORDS, max_size=6), st.sampled_from([SMALL, STRICT]))
def test_what_argparse_takes_is_read_and_what_it_refuses_is_a_fault(words: list[str], table: Table) -> None:
    reading = read(table, words)
    try:
        found = vars(parser_of(table).parse_args(words))
    except Refused:
        assert reading.faults, words
        return
    assert not reading.faults, (words, reading.faults)
    assert mentions(reading) == {name: values for name, values in found.items() if values is not None}


@pytest.mark.parametrize("program", ["sglang", "smg", "vllm-router", "reference"])
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_real_table_is_read_as_argparse_reads_it(program: str, data: st.DataObject) -> None:
    table = load(program)
    flags = data.draw(st.lists(st.sampled_from(table.flags), max_size=4))
    words: list[str] = []
    for flag in flags:
        name = data.draw(st.sampled_from(flag.names))
        words.append(name[: data.draw(st.integers(4, len(name)))] if len(name) > 4 else name)
        words += data.draw(st.lists(st.sampled_from(["1", "auto", "0.5", *(flag.choices or ())[:3]]), max_size=2))
    reading = read(table, words)
    try:
        found = vars(parser_of(table).parse_args(words))
    except Refused:
        assert reading.faults, words
        return
    assert not reading.faults, (words, reading.faults)
    assert mentions(reading) == {name: values for name, values in found.items() if values is not None}


@pytest.mark.parametrize(
    ("words", "name", "values", "part"),
    [
        (["--kv_cache_dtype", "fp8"], "--kv-cache-dtype", ("fp8",), ""),
        (["--kv_cache_dtype=a_b"], "--kv-cache-dtype", ("a_b",), ""),
        (["-tp", "4"], "--tensor-parallel-size", ("4",), ""),
        (["-O3"], "--optimization-level", ("3",), ""),
        (["-O=2"], "--optimization-level", ("2",), ""),
        (["--speculative_config.draft_model", "d"], "--speculative-config", ("d",), "draft_model"),
        (["-sc.method=mtp"], "--speculative-config", ("mtp",), "method"),
        (["--hf-overrides", '{"a": "--b"}'], "--hf-overrides", ('{"a": "--b"}',), ""),
    ],
)
def test_vllms_parser_also_takes(words: list[str], name: str, values: tuple[str, ...], part: str) -> None:
    reading = read(load("vllm"), words)
    [one] = reading.given
    assert (one.name, one.values, one.part, len(reading.faults)) == (name, values, part, "a_b" in values)


def test_every_fault_has_the_place_of_its_word() -> None:
    words = ["--tp", "2", "--nope", "x", "--page-size", "y", "--enable", "z"]
    found = [(fault.kind, fault.index, fault.word) for fault in read(SMALL, words).faults]
    assert found == [("unknown", 2, "--nope"), ("value", 4, "--page-size"), ("stray", 7, "z")]


def test_a_placeholder_is_no_wrong_value() -> None:
    words = ["--tp", "$(TP)", "--page-shape=${SHAPE}", "${EXTRA_ARGS}", "--ratio", "{{ ratio }}"]
    assert read(SMALL, words).faults == ()
