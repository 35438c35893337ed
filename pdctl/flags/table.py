"""The flags of one version of a program, as its own argument parser has them.

The files are written by `tools/flag_tables.py`; nothing in them is written by hand.
"""

from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct, structs

FOLDER: Final = Path(__file__).with_name("tables")


#: Engines that are plugins of another, and speak its words.
DIALECTS: Final[Mapping[str, str]] = {"vllm-ascend": "vllm"}


def dialect(engine: str) -> str:
    """The engine whose words an engine takes: its own, unless it is a plugin of another."""
    return DIALECTS.get(engine, engine)


TITLES: Final[Mapping[str, str]] = {"sglang": "SGLang", "vllm": "vLLM", "reference": "the reference engine"}


class Flag(Struct, frozen=True):
    """One flag: its spellings, how many values follow (as argparse counts them), and which values it takes."""

    names: tuple[str, ...]
    takes: int | Literal["?", "*", "+"] = 1
    kind: Literal["text", "int", "float"] = "text"
    choices: tuple[str, ...] | None = None
    many: bool = False
    """Each further mention adds to the ones before; of any other flag the last mention wins."""
    ends: bool = False
    """The program prints something and ends, as for --help."""

    @property
    def name(self) -> str:
        """The spelling that words are compared by."""
        return self.names[0]


class Table(Struct, frozen=True, dict=True):
    """Every flag of a program's version. `flexible`: underscores, `--a.b c` and `-O3` as vLLM's parser reads them."""

    program: str
    version: str
    abbreviations: bool
    flexible: bool
    flags: tuple[Flag, ...]

    renamed: Mapping[str, str] = {}
    """Spellings of other versions, and the flag that each means here."""

    @property
    def title(self) -> str:
        """As people write it: SGLang 0.5.23."""
        return f"{TITLES.get(self.program, self.program)} {self.version}"

    @cached_property
    def by_name(self) -> Mapping[str, Flag]:
        """The flag of each spelling."""
        own = {name: flag for flag in self.flags for name in flag.names}
        return {**{other: own[name] for other, name in self.renamed.items()}, **own}

    def with_names(self, renamed: Mapping[str, str]) -> "Table":
        """The table that knows spellings of other versions as well, where it does not have them itself."""
        return structs.replace(self, renamed=renamed) if renamed else self

    def flag(self, name: str) -> Flag | None:
        """The flag with this spelling."""
        return self.by_name.get(name)

    def near(self, name: str) -> str | None:
        """The spelling nearest to one that is not there; None where none is near."""
        from difflib import get_close_matches

        near = get_close_matches(name, self.by_name, n=1, cutoff=0.75)
        return near[0] if near else None


#: Spellings that every version takes, of which no parser says so: `--pp` was a flag of its own once.
EVER: Final[Mapping[str, Mapping[str, str]]] = {"sglang": {"--pp": "--pp-size"}}
#: Flags of what wraps an engine, which takes them before the engine sees its own; by how they begin.
WRAPPERS: Final[Mapping[str, str]] = {"--dyn-": "Dynamo's wrapper"}


@cache
def load(program: str) -> Table:
    """The table of a program: sglang, vllm, reference, smg, sglang-router, vllm-router. Raises KeyError.

    A plugin of an engine has that engine's.
    """
    program = dialect(program)
    for path in sorted(FOLDER.glob(f"{program}-[0-9]*.json"), reverse=True):
        return msgspec.json.decode(path.read_bytes(), type=Table)
    raise KeyError(program)


@cache
def elsewhere(program: str) -> Mapping[str, tuple[str, ...]]:
    """Flags that the program's table does not have, and the first and last of other versions seen with each."""
    path = FOLDER / "older.json"
    found = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, tuple[str, ...]]])
    return found.get(program, {})


@cache
def old_spellings(program: str) -> Mapping[str, str]:
    """What other versions call a flag of the table's, by their own word for it."""
    found = msgspec.json.decode((FOLDER / "renamed.json").read_bytes(), type=dict[str, dict[str, str]])
    return {**found.get(program, {}), **EVER.get(program, {})}
