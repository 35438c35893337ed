"""PD1038: flags that change the numbers in the KV and no byte count must be equal on both sides."""

from collections.abc import Iterator, Mapping
from typing import Final

from pdctl.check.groups import Group
from pdctl.check.words import Word
from pdctl.flags import dialect
from pdctl_transfer.rules import Evidence, Finding, Outcome

#: By engine: scales of an FP8 KV cache, from a file or measured.
FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "sglang": ("--quantization-param-path",),
    "vllm": ("--calculate-kv-scales",),
}


def check_same_numbers(prefill: Group, decode: Group) -> Iterator[Outcome]:
    """One finding a flag. Files are compared by their names: the same file lies under one name."""
    for flag in FLAGS.get(dialect(prefill.manifest.engine.name), ()):
        ours, theirs = prefill.flag(flag), decode.flag(flag)
        if _value(ours) != _value(theirs):
            evidence = tuple(
                Evidence(word.where if word else group.name, _said(flag, word))
                for group, word in ((prefill, ours), (decode, theirs))
            )
            what = f"KV scales: {_said(flag, ours)} on prefill, {_said(flag, theirs)} on decode"
            yield Finding("PD1038", f"{prefill.name} → {decode.name}", evidence, {"what": what})


def _value(word: Word | None) -> str | None:
    return None if word is None else word.value.rstrip("/").rsplit("/", 1)[-1]


def _said(flag: str, word: Word | None) -> str:
    return f"no {flag}" if word is None else f"{flag} {word.value}".rstrip()
