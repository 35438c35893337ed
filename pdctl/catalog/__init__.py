"""The one catalog of codes: what each says, why it matters, what to do. The words stand in `codes.toml`."""

from pdctl.catalog.read import (
    DOCS_URL,
    SECTIONS,
    CatalogEntry,
    Words,
    entries,
    lookup,
    nearest,
    section_of,
    words,
)

__all__ = ["DOCS_URL", "SECTIONS", "CatalogEntry", "Words", "entries", "lookup", "nearest", "section_of", "words"]
