"""URLs and addresses as operators write them: taken apart once, and put together again in one form."""

import re
from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import urlsplit

_PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
_PATH: Final = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)*")


class Url(NamedTuple):
    """The root of a server's endpoints. `path`: what stands before each of them, without a slash at its end."""

    scheme: str
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{authority(self.host, self.port)}{self.path}"


def parse_url(text: str) -> Url:
    """Raises ValueError, in words that go behind "found …, expected"."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("a URL whose port is from 1 to 65535, an IPv6 address in brackets") from None
    if parts.scheme not in _PORTS:
        raise ValueError("a URL that begins with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("a URL without a user or password: `api_key_env` names the variable with the key")
    if "?" in text or "#" in text:
        raise ValueError("a URL without ? or #: the root that /health and all else stand behind")
    host, path = parts.hostname or "", parts.path.rstrip("/")
    if not is_host(host) or port == 0:
        raise ValueError("a URL with a host: http://10.0.0.1:30000, http://[fd00::1]:30000")
    if not _PATH.fullmatch(path):
        raise ValueError("a URL whose path needs no escapes")
    return Url(parts.scheme, host.lower(), port or _PORTS[parts.scheme], path)


def host_of(text: str) -> str:
    """The host of a URL that may be none; empty where it has none."""
    try:
        return parse_url(text).host
    except ValueError:
        return ""


def parse_place(value: int | str, host: str) -> tuple[str, int]:
    """A port on `host`, or HOST:PORT. Raises ValueError likewise."""
    text = str(value)
    where, _, port = text.rpartition(":")
    where = where.removeprefix("[").removesuffix("]") if where.startswith("[") else where
    if not port.isascii() or not port.isdecimal() or not 0 < int(port[:6]) <= 65535 or (":" in text and not where):
        raise ValueError("a port, or HOST:PORT such as 10.0.0.1:8998 or [fd00::1]:8998")
    if where and (not is_host(where) or (":" in where and not text.startswith("["))):
        raise ValueError("HOST:PORT with a host, an IPv6 address in brackets")
    return where.lower() or host, int(port)


def authority(host: str, port: int) -> str:
    """`10.0.0.1:80`, `[fd00::1]:80`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_host(text: str) -> bool:
    """Whether a text can be a host name or an address."""
    if _HOST.fullmatch(text):
        return True
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True
