"""The engines that a router's own `args` list, as each router takes such a list."""

from collections.abc import Iterator, Sequence
from typing import Final, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from pdctl.flags import Flag, Given, Table, read
from pdctl.flags.reader import is_open
from pdctl.routers.contracts import Contract

Role = Literal["prefill", "decode"]
HOSTS: Final[dict[Role, tuple[str, str]]] = {
    "prefill": ("--prefiller-hosts", "--prefiller-ports"),
    "decode": ("--decoder-hosts", "--decoder-ports"),
}
PORTS: Final = "--prefill-bootstrap-ports"
#: The flags that list engines, of every router that lists them; what stands between them is passed over.
TABLE: Final = Table(
    program="router",
    version="",
    abbreviations=False,
    flexible=False,
    flags=(
        Flag(("--prefill",), takes="+", many=True),
        Flag(("--decode",), takes="+", many=True),
        Flag((PORTS,)),
        *(Flag((name, name.removesuffix("s")), takes="+") for pair in HOSTS.values() for name in pair),
    ),
)


class Listed(Struct, frozen=True):
    """One engine of a router's list; `text` is what stands there, `index` its word. Without a host it is none.

    `open`: a placeholder that somebody fills in later, of which nothing can be said.
    """

    role: Role
    text: str
    index: int
    host: str | None = None
    port: int | None = None
    bootstrap: int | None = None
    open: bool = False


def listed(contract: Contract, args: Sequence[str]) -> tuple[Listed, ...]:
    """In the order of the words."""
    given = read(TABLE, args).given
    if contract.listing == "hosts":
        found = [one for role in HOSTS for one in _paired(role, given)]
    elif contract.listing == "found":
        found = []
    else:
        found = [one for word in given for one in _named(contract, word, given)]
    return tuple(found)


def _named(contract: Contract, word: Given, given: Sequence[Given]) -> Iterator[Listed]:
    """`--prefill` and `--decode`: one engine and its port, or several."""
    role: Role = "prefill" if word.called("--prefill") else "decode"
    if not word.called("--prefill", "--decode") or not word.values:
        return
    if contract.listing == "addresses":
        for text in word.values:
            yield _one(role, text, word.index)
        return
    first, *more = word.values
    ports = more[:1]
    texts = [first]
    if contract.listing == "commas":
        texts = first.split(",")
        named = next((one.value for one in given if one.called(PORTS)), "")
        ports = named.split(",") if named and role == "prefill" else ports
    for text, port in zip(texts, [*ports, *[""] * len(texts)], strict=False):
        yield _one(role, text, word.index, port)


def _paired(role: Role, given: Sequence[Given]) -> Iterator[Listed]:
    """Hosts in one flag, ports in another: the proxies end with an error where their numbers differ."""
    hosts, ports = (next((one for one in reversed(given) if one.called(name)), None) for name in HOSTS[role])
    if hosts is None or ports is None:
        return
    if len(hosts.values) != len(ports.values):
        yield Listed(role, f"{len(hosts.values)} hosts, {len(ports.values)} ports", hosts.index)
        return
    for host, port in zip(hosts.values, ports.values, strict=True):
        yield _one(role, f"{host}:{port}", hosts.index)


def _one(role: Role, text: str, index: int, bootstrap: str = "") -> Listed:
    if is_open(text):
        return Listed(role, text, index, open=True)
    try:
        address = urlsplit(text if "//" in text else f"//{text}")
        host, port = address.hostname, address.port
    except ValueError:
        host, port = None, None
    if host is None or "," in text:
        return Listed(role, text, index)
    return Listed(role, text, index, host, port, int(bootstrap) if bootstrap.isdecimal() else None)
