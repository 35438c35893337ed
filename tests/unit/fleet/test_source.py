"""YAML with lines: nothing that a file can contain may end in a traceback, a hang, or a silent choice."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.errors import FleetFileError
from pdctl.fleet import source
from pdctl.fleet.source import MAX_BYTES, MAX_DEPTH, parse, read


def fault(text: str | bytes) -> FleetFileError:
    with pytest.raises(FleetFileError) as caught:
        parse(text.encode() if isinstance(text, str) else text, "f.yaml")
    return caught.value


def test_every_key_and_item_has_its_line() -> None:
    document = parse(b"a: 1\nb:\n  - x\n  - y: 2\n", "f.yaml")
    assert document.data == {"a": 1, "b": ["x", {"y": 2}]}
    assert document.lines == {("a",): 1, ("b",): 2, ("b", 0): 3, ("b", 1): 4, ("b", 1, "y"): 4}
    assert document.where(("b", 1, "nothing", "here")) == "f.yaml:4"


def test_a_merged_key_has_the_line_of_its_anchor_and_yields_to_an_own_one() -> None:
    text = b"base: &base\n  size: 1\n  tp: 2\none:\n  <<: *base\n  tp: 4\n"
    document = parse(text, "f.yaml")
    assert document.data["one"] == {"size": 1, "tp": 4}
    assert document.lines["one", "size"] == 2
    assert document.lines["one", "tp"] == 6


def test_of_several_merged_mappings_the_first_wins() -> None:
    document = parse(b"a: &a {x: 1}\nb: &b {x: 2, y: 3}\nc:\n  <<: [*a, *b]\n", "f.yaml")
    assert document.data["c"] == {"x": 1, "y": 3}


@pytest.mark.code("PD0007")
def test_a_key_given_twice_is_refused_with_both_lines() -> None:
    error = fault("a: 1\nb:\n  c: 1\n  c: 2\n")
    assert (error.code, error.where, error.message) == ("PD0007", "f.yaml:4", "c: given twice, first in line 3")


@pytest.mark.code("PD0006")
@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("", "f.yaml", "the file is empty"),
        ("# nothing\n", "f.yaml", "the file is empty"),
        ("a:\n\tb: 1\n", "f.yaml:2", "a tab where YAML takes only spaces"),
        ("a: [1, 2\n", "f.yaml:2", "not YAML"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2", "a second document"),
        (b"a: 1\nb: \xff\n", "f.yaml:2", "byte 0xff is not UTF-8"),
        ("a: &a [*a]\n", "f.yaml:1", "an alias that contains itself"),
        ("a: !!python/object:os.system x\n", "f.yaml:1", "not YAML"),
        ("a: !include x\n", "f.yaml:1", "not YAML"),
        ("? [1, 2]\n: x\n", "f.yaml:1", "a key must be a word"),
        ("a:\n  <<: 3\n", "f.yaml:2", "`<<` takes a mapping"),
        ("[" * 5000, "f.yaml:1", "nested too deeply"),
        ("a:\n  " + "- " * 500 + "x\n", "f.yaml:2", "nested too deeply"),
        ("a: [" + "1," * 20_000 + "]\n", "f.yaml:1", "holds more than 10000 values"),
        ("a: 1\n".encode("utf-16"), "f.yaml:1", "the file is UTF-16"),
        ("a: 1\n".encode("utf-32"), "f.yaml:1", "the file is UTF-32"),
        ("a: \x00\n", "f.yaml:1", "the control character U+0000"),
        ("a: 1\nb: 2\nc: '\x1b[31m'\n", "f.yaml:3", "the control character U+001B"),
    ],
)
def test_what_is_not_yaml_is_told_with_its_line(text: str | bytes, where: str, says: str) -> None:
    error = fault(text)
    assert error.code == "PD0006"
    assert (error.where or "").startswith(where)
    assert says in error.message


@pytest.mark.parametrize("text", ["[" * 10_000, "{a: " * 10_000, "- " * 10_000, "? " * 10_000, "[{" * 10_000])
def test_depth_is_counted_before_it_is_paid_for(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 brackets took two seconds before they were refused: of what is too deep only the beginning is scanned."""
    tokens = 0
    fetch = source._Loader.fetch_more_tokens

    def counted(loader: source._Loader) -> None:
        nonlocal tokens
        tokens += 1
        fetch(loader)

    monkeypatch.setattr(source._Loader, "fetch_more_tokens", counted)
    assert "nested too deeply" in fault(text).message
    assert tokens < 10 * MAX_DEPTH


@pytest.mark.code("PD0004")
@pytest.mark.parametrize(
    ("value", "read"),
    [("020", "16"), ("1:30", "90"), ("1_6", "16"), ("0x10", "16"), ("0b11", "3"), ("-012", "-10"), ("1_6.5", "16.5")],
)
@pytest.mark.parametrize("text", ["a:\n  page_size: {}\n", "a:\n  page_size: [1, {}]\n"])
def test_numbers_of_yaml_1_1_are_refused_with_what_they_would_be(value: str, read: str, text: str) -> None:
    """A page size of 020 would be 16, without a word."""
    error = fault(text.format(value))
    assert (error.code, error.where) == ("PD0004", "f.yaml:2")
    assert error.message.startswith("a.page_size")
    assert error.message.endswith(f"found {value}, which YAML reads as {read}")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("9" * 5000, "int"),
        ("-" + "9" * 5000, "int"),
        ("2026-13-45", "timestamp"),
        ("!!int x", "int"),
        ("!!float x", "float"),
    ],
)
@pytest.mark.parametrize("text", ["a:\n  b: {}\n", "a:\n  - {}\n"])
def test_a_value_that_yaml_itself_cannot_make_is_told_where_it_stands(value: str, kind: str, text: str) -> None:
    error = fault(text.format(value))
    assert (error.code, error.where) == ("PD0004", "f.yaml:2")
    assert error.message.endswith(f"which is no {kind} that can be read")
    assert len(error.message) < 120


def test_ordinary_numbers_and_quoted_ones_are_taken() -> None:
    text = "a: [0, 16, -4, +4, 0.85, .5, 1.0e-5, '020', \"1:30\", 1.2.3, 10.0.0.1]\n"
    assert parse(text.encode(), "f.yaml").data["a"] == [
        *(0, 16, -4, 4, 0.85, 0.5, 1e-5),
        *("020", "1:30", "1.2.3", "10.0.0.1"),
    ]


@pytest.mark.code("PD0004")
@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("a: 1\n1: 2\n", "f.yaml:2", "the file: found the key 1, expected text"),
        ("a: 1\nb: {c: 1,\n  null: 2}\n", "f.yaml:3", "b: found the key null, expected text"),
        ("a: 1\nb: [{yes: 2}]\n", "f.yaml:2", "b.0: found the key true, expected text"),
    ],
)
def test_a_key_that_is_no_text_is_told_where_it_stands(text: str, where: str, message: str) -> None:
    error = fault(text)
    assert (error.code, error.where, error.message, error.hint) == ("PD0004", where, message, "quote it")


@pytest.mark.code("PD0006")
def test_aliases_that_expand_without_bound_are_refused_at_once() -> None:
    """Ten lines that mean a billion values."""
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
    assert "expands to more than" in fault(text).message


@pytest.mark.code("PD0006")
def test_a_file_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(FleetFileError, match="larger than 1024 KiB"):
        parse(read(path), str(path))


@pytest.mark.code("PD0002")
@pytest.mark.parametrize(("name", "says"), [("nothing.yaml", "no such file"), (".", "is a directory")])
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(FleetFileError, match=says) as caught:
        read(tmp_path / name)
    assert (caught.value.code, caught.value.where) == ("PD0002", str(tmp_path / name))


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=" \n:-[]{}&*!|>'\"%@`#,?ab1\t<\\", max_size=60))
def test_no_text_ends_in_anything_but_data_or_a_coded_error(text: str) -> None:
    try:
        parse(text.encode(), "f.yaml")
    except FleetFileError as error:
        code = error.code
    else:
        return
    assert code in ("PD0004", "PD0006", "PD0007")
