"""Whatever the bytes are: a manifest, or a ManifestError that says where and why."""

import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl_transfer.errors import ManifestError
from pdctl_transfer.layout import read
from pdctl_transfer.layout.read import decode_manifest, encode_manifest, read_manifest
from tests.unit.layout.build import component, kv, replicated, single
from tests.unit.layout.examples import EXAMPLES

GOOD = EXAMPLES["dense-prefill-tp2"].read_bytes()
SMALL = encode_manifest(single("prefill", 1, kv([0, 1]), component("mamba", "slot", replicated(2, "conv"))))


@pytest.mark.parametrize("path", sorted(EXAMPLES.values()), ids=lambda path: path.stem)
def test_reading_and_writing_keeps_the_document(path):
    """Order and all: other tools read what we write."""
    written = encode_manifest(read_manifest(path))
    assert json.dumps(json.loads(written)) == json.dumps(json.loads(path.read_bytes()))


def test_a_byte_order_mark_is_no_fault():
    assert decode_manifest(b"\xef\xbb\xbf" + GOOD, "f") == decode_manifest(GOOD, "f")


def test_optional_fields_are_written_only_where_they_say_something():
    side = single("prefill", 1, kv([0], engine_pairs="position"), kv([1]))
    document = json.loads(encode_manifest(side))
    first, second = document["stages"][0]["components"]
    assert first["engine_pairs"] == "position"
    assert "engine_pairs" not in second
    assert "engine_slices" not in second["entries"][0]
    assert document["speculative"] is None


def test_an_unknown_kind_is_kept():
    side = single("prefill", 1, component("tomorrow", "other", replicated(0, "novel")))
    assert decode_manifest(encode_manifest(side), "x") == side


def _edit(old: bytes, new: bytes) -> bytes:
    assert old in SMALL
    return SMALL.replace(old, new, 1)


@pytest.mark.code("PD0021")
@pytest.mark.parametrize(
    ("data", "path", "reason"),
    [
        (b"", "", "empty"),
        (b" \n", "", "empty"),
        (b"[]", "", "Expected `object`"),
        (b"null", "", "Expected `object`"),
        (GOOD[:-3], "", "truncated"),
        (b"\xff" + GOOD, "", "malformed"),
        (GOOD + b"{}", "", "trailing"),
        (GOOD.decode().encode("utf-16"), "", "malformed"),
        (b"{}", "$.schema", "missing"),
        (_edit(b"layout/v1", b"layout/v2"), "$.schema", 'found "pdctl.layout/v2"'),
        (_edit(b'"schema":"pdctl.layout/v1"', b'"schema":["pdctl.layout/v1"]'), "$.schema", "found ["),
        (_edit(b'"role":"prefill"', b'"role":"both"'), "$.role", "Invalid enum value 'both'"),
        (_edit(b'"page_size":16', b'"page_size":"16"'), "$.page_size", "Expected `int`, got `str`"),
        (_edit(b'"page_size":16', b'"page_size":16.5'), "$.page_size", "Expected `int`, got `float`"),
        (_edit(b'"page_size":16,', b""), "", "missing required field `page_size`"),
        (_edit(b'"outer":16', b'"outer":NaN'), "", "malformed"),
        (_edit(b'"outer":16', b'"outer":1e999'), "$.stages[0].components[0].entries[0].outer", "out of range"),
        (_edit(b'"outer":16', b'"outer":' + b"9" * 5000), "$.stages[0].components[0].entries[0].outer", "out of range"),
        (_edit(b'"outer":16', b'"outer":16,"outer":32'), "", 'the key "outer" occurs twice'),
        (_edit(b'"speculative":null', b'"speculative":{"a":1e999}'), "$.speculative[...]", "out of range"),
        (_edit(b'"name":"m"', b'"name":"\\ud800"'), "", "malformed"),
        (_edit(b'"name":"m"', b'"name":"\xc3\x28"'), "", "UTF-8"),
        (b"[" * 10**6, "", "Expected `object`"),
        (b'{"schema":' + b"[" * 10**6, "", "nested too deeply"),
        (_edit(b'"speculative":null', b'"speculative":{"a":' + b"[" * 10**5 + b"]" * 10**5 + b"}"), "", "nested"),
        (_edit(b'"stages":[', b'"stages":[null,'), "$.stages[0]", "Expected `object`, got `null`"),
        (_edit(b'"layers":[0,8]', b'"layers":[0]'), "$.stages[0].layers", "length 2"),
    ],
)
def test_bad_bytes_are_refused_with_place_and_reason(data, path, reason):
    with pytest.raises(ManifestError) as error:
        decode_manifest(data, "side.json")
    assert error.value.source == "side.json"
    assert error.value.path in {path, path or "$"}
    assert reason in error.value.reason


@pytest.mark.code("PD0021")
def test_over_64_mib_is_refused_unread(tmp_path):
    with pytest.raises(ManifestError, match="over the limit of 64 MiB"):
        decode_manifest(b" " * (64 * 1024 * 1024 + 1), "x")
    endless = tmp_path / "endless.json"
    with endless.open("wb") as file:
        file.truncate(1 << 40)  # sparse: reading all of it would take minutes
    with pytest.raises(ManifestError, match="over the limit"):
        read_manifest(endless)


@pytest.mark.code("PD0021")
def test_too_many_entries_are_refused(monkeypatch):
    monkeypatch.setattr(read, "MAX_ENTRIES", 4)
    with pytest.raises(ManifestError, match="5 entries, over the limit of 4"):
        decode_manifest(SMALL, "x")


@pytest.mark.code("PD0021")
@pytest.mark.parametrize("name", ["absent.json", "", "a\0b"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name):
    with pytest.raises(ManifestError) as error:
        read_manifest(tmp_path / name)
    assert tmp_path.name in error.value.source


@given(st.binary(max_size=200))
def test_noise_is_never_a_traceback(data):
    with pytest.raises(ManifestError):
        decode_manifest(data, "x")


@given(st.integers(0, len(SMALL) - 1), st.integers(0, 60), st.binary(max_size=8))
def test_damaged_documents_are_never_a_traceback(at, cut, put):
    with suppress(ManifestError):
        decode_manifest(SMALL[:at] + put + SMALL[at + cut :], "x")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.data(), JSON)
def test_any_value_in_any_place_is_never_a_traceback(data, value):
    """A well-formed document with one value replaced: accepted where it fits, else refused."""
    document = json.loads(SMALL)
    place, key = document, data.draw(st.sampled_from(sorted(document)))
    while isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
        place = place[key]
        key = data.draw(st.sampled_from(sorted(place)) if isinstance(place, dict) else st.integers(0, len(place) - 1))
    place[key] = value
    with suppress(ManifestError):
        decode_manifest(msgspec.json.encode(document), "x")
