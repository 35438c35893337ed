"""Convert and check published launch recipes: `python tools/check_recipes.py RECIPES --models DIR`.

RECIPES is a folder or a .tar.gz of YAML files. DIR holds one folder a model with its config.json, named as in `MODELS`
below, and one a draft model that recipes name: kimi_k3_dspark for Inferact/Kimi-K3-DSpark. Prints a table by model and
engine, then every error, why layouts are unknown, and what the conversions left out.
Exit 3 for an error.
"""

import argparse
import json
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import yaml
from msgspec import Struct, field

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "transfer"), str(ROOT / "topology")]

from pdctl.check import Options, check_fleet  # noqa: E402
from pdctl.errors import PdctlError  # noqa: E402
from pdctl.fleet import parse_fleet  # noqa: E402
from pdctl.recipes import Converted, convert, variants  # noqa: E402
from pdctl.report import Report  # noqa: E402

#: Model folders by what a recipe calls its model; the first that matches. A folder stands for its model's variants.
MODELS: Final = (
    (r"deepseek-?v4|dsv4", "deepseek_v4_flash"),
    (r"deepseek-?r1|^ds(r1|fp[48])|deepseek-?v3", "deepseek_v3"),
    (r"glm-?5", "glm52"),
    (r"kimi-?k2\.[56]", "kimi_k25"),
    (r"kimi-?k3", "kimi_k3"),
    (r"minimax-?m3", "minimax_m3_sparse"),
    (r"qwen3\.5", "qwen35_397b_a17b"),
    (r"qwen3-32b", "qwen3_32b"),
)
COLUMNS: Final = ("files", "pairs", "fits", "warnings", "refused", "unknown", "unusable")
VERDICTS: Final = {"fits": "fits", "fits with warnings": "warnings", "refused": "refused", "unknown": "unknown"}


class Row(Struct):
    """Counts of one model and engine; `codes` by severity and code."""

    counts: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    files: set[str] = field(default_factory=set)


class Result(Struct):
    """Everything that was seen."""

    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    errors: list[tuple[str, str, str]] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    not_converted: list[tuple[str, str]] = field(default_factory=list)
    files: int = 0


def documents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each YAML file of a folder or an archive."""
    if path.is_dir():
        for one in sorted(path.rglob("*.y*ml")):
            yield str(one.relative_to(path)), one.read_bytes()
        return
    with tarfile.open(path) as archive:
        for member in sorted(archive.getmembers(), key=lambda one: one.name):
            if member.isfile() and re.search(r"\.ya?ml$", member.name) and (held := archive.extractfile(member)):
                yield member.name, held.read()


def run(recipes: Path, models: Path) -> Result:
    """Every launch of every file, checked in this process."""
    result = Result()
    for name, data in documents(recipes):
        result.files += 1
        try:
            document = yaml.safe_load(data)
            if not isinstance(document, Mapping):
                raise ValueError("holds no mapping")
            launches = [(label, convert(one)) for label, one in variants(document)]
        except (PdctlError, yaml.YAMLError, ValueError) as error:
            where = f"{error.where}: " if isinstance(error, PdctlError) and error.where else ""
            result.not_converted.append((name, f"{where}{error}"))
            continue
        for label, launch in launches:
            _one(result, name, f"{name} {label}".strip(), launch, models)
    return result


def _one(result: Result, file: str, name: str, launch: Converted, models: Path) -> None:
    spoken = (launch.fleet["model"]["path"], launch.fleet["model"].get("name", ""))
    folder = next((to for word in spoken for find, to in MODELS if re.search(find, word.lower())), None)
    row = result.rows.setdefault((folder or spoken[0], launch.fleet["engine"]), Row())
    row.files.add(file)
    row.counts["pairs"] += 1
    result.left.update(_kind(one.key, one.why) for one in launch.left)
    if folder is None:
        row.counts["unusable"] += 1
        result.errors.append((name, "", f"no config for {spoken[0]}"))
        return
    text = json.dumps(launch.fleet, indent=1).encode()
    options = Options(platform=launch.platform, model=models / folder, draft=_draft(launch, models))
    try:
        report = check_fleet(parse_fleet(text, Path(name)), options)
    except PdctlError as error:
        row.counts["unusable"] += 1
        row.codes[f"error {error.code}"] += 1
        result.errors.append((name, error.code, str(error)))
        return
    _count(result, row, name, report)


def _draft(launch: Converted, models: Path) -> Path | None:
    """The folder of the draft model that a recipe names, where DIR has one."""
    text = json.dumps(launch.fleet).replace("\\", "")
    named = re.search(r'speculative-(?:config", "\{[^}]*?"model": ?|draft-model-path", )"([^"]+)', text)
    folder = models / re.sub(r"[^a-z0-9]+", "_", named[1].rsplit("/", 1)[-1].lower()) if named else None
    return folder if folder is not None and (folder / "config.json").is_file() else None


def _count(result: Result, row: Row, name: str, report: Report) -> None:
    """One launch is one pair, however many replicas it has."""
    row.counts[VERDICTS[report.pairs[0].verdict]] += 1
    row.codes.update({f"{one.severity} {one.code}" for one in report.findings})
    result.unknown.update(one.message for one in report.findings if one.code == "PD1034")
    result.errors += [(name, one.code, one.message) for one in report.findings if one.severity == "error"]


def _kind(key: str, why: str) -> str:
    """Where a line stood, without its own name: so that lines of one kind count together."""
    parts = key.split(".")
    return f"{'.'.join(parts[:2]) if len(parts) > 1 else key}: {re.sub(r'[0-9]+', 'N', why)}"


def table(result: Result) -> str:
    """A Markdown table by model and engine, and its sum."""
    lines = [f"| model | engine | {' | '.join(COLUMNS)} | codes |", "|---|---|" + "--:|" * len(COLUMNS) + "---|"]
    total: Counter[str] = Counter()
    for (model, engine), row in sorted(result.rows.items()):
        row.counts["files"] = len(row.files)
        total.update(row.counts)
        codes = ", ".join(f"{code} × {count}" for code, count in sorted(row.codes.items()) if "info" not in code)
        lines.append(f"| {model} | {engine} | {' | '.join(str(row.counts[one]) for one in COLUMNS)} | {codes} |")
    lines.append(f"| all | | {' | '.join(str(total[one]) for one in COLUMNS)} | |")
    return "\n".join(lines)


def main() -> int:
    """0 no error; 3 one, or a file that could not be converted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipes", type=Path)
    parser.add_argument("--models", type=Path, required=True)
    given = parser.parse_args()
    result = run(given.recipes, given.models)
    print(table(result))
    print(f"\n{result.files} files, {len(result.not_converted)} not convertible")
    for name, why in result.not_converted:
        print(f"  {name}: {why}")
    print(f"\n{len(result.errors)} errors")
    for name, code, message in result.errors:
        print(f"  {code} {name}: {message}")
    for title, counts in (("layouts not known", result.unknown), ("lines left out", result.left)):
        print(f"\n{title}: {counts.total()}")
        for kind, count in counts.most_common():
            print(f"  {count:6d} {kind}")
    return 3 if result.errors or result.not_converted else 0


if __name__ == "__main__":
    sys.exit(main())
