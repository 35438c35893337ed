"""Which release of an engine runs, by what says so, and which releases pdctl's tables were read out of. Pure."""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from pdctl_transfer.rules.releases import RANGES, SHOWN, in_range, release

__all__ = ["IMAGES", "PINNED", "SHOWN", "Release", "image_version", "in_range", "known_range", "release", "released"]

#: The release that layouts, flags and rules are those of.
PINNED: Final[Mapping[str, str]] = {"sglang": "0.5.23", "vllm": "0.32.0", "vllm-ascend": "0.23.0"}
#: Repositories whose tags are the engine's releases, by the last part of their names. Others count their own.
IMAGES: Final[Mapping[str, re.Pattern[str]]] = {
    "sglang": re.compile(r"sglang(-(rocm|cpu|npu|xpu))?"),
    "vllm-ascend": re.compile(r"vllm-ascend"),
    "vllm": re.compile(r"vllm-(openai|cpu|rocm)(-(rocm|cpu|xpu))?"),
}
_TAG = re.compile(r"v?(\d+\.\d+\.\d+(?:\.post\d+)?)(?:[-_].*)?")
_NPU = re.compile(r"-(a[235]|310p)(?=-|$)")
"""The hardware of an image of vllm-ascend; `a3` would else be read as an alpha."""
_EARLY = re.compile(r"v?\d+\.\d+\.\d+(?:\.post\d+)?[-_.]?(?:rc|dev|alpha|beta|nightly|[ab]\d)")


class Release(Struct, frozen=True):
    """The version of a side. `stated` is None where nothing says it; `by` is what says so, or fails to.

    `judged` is the release whose rules are applied: the stated one where it lies in the known range.
    """

    engine: str
    judged: str | None
    stated: str | None = None
    source: str = ""
    by: str = ""

    @property
    def known(self) -> bool:
        """Whether the version is stated and lies in the range that was read."""
        return self.stated is not None and self.stated == self.judged

    @property
    def assumed(self) -> bool:
        """Whether nothing in the file speaks of a version at all."""
        return not self.by

    @property
    def name(self) -> str:
        """`SGLang 0.5.23`."""
        shown = SHOWN.get(self.engine, self.engine)
        return f"{shown} {self.judged}" if self.judged else shown


def released(engine: str, stated: str | None, source: str = "", by: str = "") -> Release:
    """The release to judge for. An engine without a table is judged by the version that it states."""
    if engine not in PINNED:
        return Release(engine, stated, stated, source, by)
    return Release(engine, stated if in_range(engine, stated) else PINNED[engine], stated, source, by)


def known_range(engine: str) -> tuple[str, str]:
    """The oldest and the newest release that pdctl's facts were read out of."""
    return RANGES[engine]


def image_version(engine: str, image: str) -> str | None:
    """The engine's release by the tag of its own image: `lmsysorg/sglang:v0.5.16-cu129` → `0.5.16`.

    None for nightlies, candidates, digests, tags with other words, and others' images, whose tags count something else.
    """
    path, _, tag = image.partition("@")[0].rpartition(":")
    if not path or "/" in tag or engine not in IMAGES or not IMAGES[engine].fullmatch(path.rsplit("/", 1)[-1]):
        return None
    tag = _NPU.sub("", tag) if engine == "vllm-ascend" else tag
    match = None if _EARLY.match(tag) else _TAG.fullmatch(tag)
    return match[1] if match else None
