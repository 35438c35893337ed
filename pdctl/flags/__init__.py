"""Command line flags of engines and routers: tables made from their own parsers, and the one reader of words."""

from pdctl.flags.judge import Verdict, read_words, values_of_switches, verdicts
from pdctl.flags.reader import Fault, Given, Reading, read
from pdctl.flags.table import Flag, Table, dialect, load

__all__ = [
    "Fault",
    "Flag",
    "Given",
    "Reading",
    "Table",
    "Verdict",
    "dialect",
    "load",
    "read",
    "read_words",
    "values_of_switches",
    "verdicts",
]
