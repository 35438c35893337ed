"""Writes what the site takes from the code: a page a code, their index, and the table of routers.

`--check` only says what is not current.
"""

import sys
from pathlib import Path

from pdctl.catalog import SECTIONS, CatalogEntry, entries
from pdctl.routers import CONTRACTS, ROUTERS, Contract
from pdctl.routers.contracts import NEEDS, SPEECHES, Speech

DOCS = Path(__file__).resolve().parent.parent / "docs"
CODES = DOCS / "codes"
ROUTER_KINDS = DOCS / "router-kinds.md"
NOTE = "<!-- written by tools/gen_docs.py from pdctl/catalog/codes.toml -->\n\n"


def page(entry: CatalogEntry) -> str:
    """The page of one code."""
    parts = [f"# {entry.code}: {entry.title}\n", f"*{entry.severity} · {entry.section}*\n"]
    if entry.retired:
        parts.append("Retired: this version no longer reports it. The code is not used again.\n")
    if entry.message != "{what}":
        parts += ["```text", entry.spoken(entry.message), "```\n"]
    parts += ["## Why it matters\n", f"{_escape(entry.spoken(entry.why))}\n"]
    parts += ["## What to do\n", f"{_escape(entry.spoken(entry.action))}\n"]
    if entry.seen:
        parts += ["## Where it was seen\n", f"{_escape(entry.seen)}\n"]
    parts.append(f"`pdctl explain {entry.code}` says the same offline.\n")
    return NOTE + "\n".join(parts)


def index() -> str:
    """All codes by section."""
    parts = ["# Codes\n", "Every finding and every error of pdctl has a code. A code is never reused or renumbered.\n"]
    for section in SECTIONS.values():
        rows = sorted((e for e in entries().values() if e.section == section), key=lambda e: e.code)
        if rows:
            parts += [f"## {section}\n", "| code | severity | says |", "|---|---|---|"]
            parts += [f"| [{e.code}]({e.code}.md) | {e.severity} | {e.title} |" for e in rows]
            parts.append("")
    parts += ["```{toctree}", ":hidden:", "", *sorted(entries()), "```", ""]
    return NOTE + "\n".join(parts)


LISTINGS = {
    "urls": "`--prefill URL [PORT]`, `--decode URL`",
    "commas": "`--prefill URL [PORT]`, `--decode URL`; once several with commas",
    "addresses": "`--prefill HOST:PORT …`, `--decode HOST:PORT …`",
    "hosts": "`--prefiller-hosts`, `--prefiller-ports`, `--decoder-hosts`, `--decoder-ports`",
    "found": "discovered, or by flags that are not judged",
}


def router_kinds() -> str:
    """Who waits for what, and which router does it."""
    parts = [
        "<!-- written by tools/gen_docs.py from pdctl/routers/contracts.py -->\n",
        "| way | the router … | who waits for it |",
        "|---|---|---|",
        *(f"| `{way}` | {words} | {_waiting(way)} |" for way, words in SPEECHES.items()),
        "\n| `router.kind` | what it is | way | engines are listed by | port |",
        "|---|---|---|---|---|",
        *(_router(one) for one in CONTRACTS),
        "\n| `router.kind` | read in |",
        "|---|---|",
        *(f"| `{one.name}` | {one.source} |" for one in CONTRACTS),
        "",
    ]
    return "\n".join(parts)


def _waiting(way: Speech) -> str:
    engines = ["SGLang", "the reference engine"] if way == "bootstrap" else []
    return ", ".join([*engines, *(f"`{name}`" for name, need in NEEDS.items() if need == way)]) or "stores of several"


def _router(one: Contract) -> str:
    ways = [f"`{way}`" for way in sorted(one.speaks)] + [f"`{way}` (some)" for way in sorted(one.some)]
    if one.chosen is not None:
        ways.append("; ".join(f"`{way}` by `{one.chosen.flag} {word}`" for word, way in one.chosen.means.items()))
    title = f"{one.title}, started by `up`" if one.name in ROUTERS else one.title
    more = ", others not judged" if one.open else ""
    return f"| `{one.name}` | {title} | {', '.join(ways)}{more} | {LISTINGS[one.listing]} | {one.listens or ''} |"


def pages() -> dict[Path, str]:
    """Every generated file and what it should hold."""
    return {ROUTER_KINDS: router_kinds(), **code_pages()}


def code_pages() -> dict[Path, str]:
    """A page a code, and their index."""
    return {CODES / "index.md": index()} | {CODES / f"{code}.md": page(entry) for code, entry in entries().items()}


def stale() -> list[Path]:
    """Generated files that are missing, differ, or belong to no code any more."""
    wanted = pages()
    differing = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    return differing + sorted(path for path in CODES.glob("*.md") if path not in wanted)


def main(argv: list[str]) -> int:
    """Write the pages; with `--check`, name those that are not current and return 1."""
    if "--check" in argv:
        for path in stale():
            print(f"{path.relative_to(CODES.parent.parent)} is not current: run python tools/gen_docs.py")
        return 1 if stale() else 0
    CODES.mkdir(parents=True, exist_ok=True)
    for path in stale():
        if path in pages():
            path.write_text(pages()[path], encoding="utf-8")
        else:
            path.unlink()
        print(f"{path.relative_to(CODES.parent.parent)}")
    return 0


def _escape(text: str) -> str:
    """Words in angle brackets or braces are words, not markup."""
    return text.replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
