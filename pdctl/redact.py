"""What is kept from a reader's eyes: secrets, known by where they stand, and characters that a terminal would obey.

Names, logs, bodies and manifests come from other people and other machines. `clean` makes visible what in them acts
instead of being read; `hide`, `hide_argv` and `hide_env` leave a secret's place in sight and take its value away.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

HIDDEN: Final = "…"
"""What stands where a secret stood."""
LONGEST_LINE: Final = 1000
"""Characters of a line that `clean` leaves."""
LONGEST: Final = 64 << 10
"""Characters of a text that `clean` leaves."""

_JOINERS = "\u200c\u200d"
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"
"""Letters by their category, and nothing to be seen."""


def clean(text: str, limit: int | None = LONGEST_LINE) -> str:
    """`text` for a terminal: every character that is not to be seen as an escape, lines cut after `limit` characters.

    Line ends and tabs stay. The joiners that Arabic, Indic scripts and emoji need stay behind letters of such scripts.
    """
    if limit is not None:
        text = "\n".join(_cut(line, limit) for line in _cut(text, LONGEST).split("\n"))
    if text.replace("\n", "").replace("\t", "").isprintable() and not any(mark in text for mark in _BLANK):
        return text
    return "".join(char if _may_stand(text, at) else _escape(char) for at, char in enumerate(text))


def clean_line(text: str, limit: int | None = LONGEST_LINE) -> str:
    """`clean`, on one line: other white space becomes a blank."""
    return clean(" ".join(text.splitlines()).replace("\t", " "), limit)


_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def plain(text: str) -> str:
    """Without the sequences that only colour it."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


def clean_json(text: str) -> str:
    """A JSON document, equal as JSON, in which no character acts on a terminal either."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(char if char == "\n" or char.isprintable() else _json_escape(char) for char in text)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


def _may_stand(text: str, at: int) -> bool:
    char = text[at]
    if char in _JOINERS:
        return at > 0 and not text[at - 1].isascii() and text[at - 1].isprintable()
    if char in _BLANK:
        return False
    return char in "\n\t" or char.isprintable()


def _escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if char.isprintable() else repr(char)[1:-1]


# A name is taken apart at its hyphens, underscores, dots and capitals; one word is enough to make it a secret's.
_SECRET_WORD = re.compile(
    r"SECRETS?|\w*SECRET|\w*PASSW\w*|\w+PASSPHRASE|PASSPHRASE|PASSCODE|(SSH|DB|USER)?PASS|\w*CREDENTIALS?|CREDS?"
    r"|\w*TOKEN|(API|ACCESS|ACCOUNT|SSH|HMAC|PRIVATE|SIGNING|MASTER|ADMIN)?KEYS?|\w+APIKEYS?"
    r"|(O|X|HTTP)?AUTH\d?|AUTHORI[SZ]ATION|AUTHENTICATION|BEARER|COOKIES?|JWT|PAT"
)
#: With one of these, `…_TOKENS` are what a client shows; without, they are counted.
_SHOWN_TOKENS = re.compile("API|AUTH|ACCESS|BEARER|REFRESH|SECRET|HF|GITHUB")
#: A name that ends so names the place, the kind or the number of something secret, or what is not secret at all.
_HARMLESS_END = re.compile(
    "FILE|PATH|DIR|FOLDER|SOCK|URLS?|URI|ENV|NAME|TYPE|MODE|KIND|ALGO|ISSUER|AUDIENCE|MAP|MAPPING|PREFIX|HEADERS?|PARSER"
    "|OVERRIDE|SIZE|LEN|LENGTH|NUM|COUNT|RATIO|LIMIT|THRESHOLD|USAGE|RATE|TTL|TIMEOUT|SECS|SECONDS?|MS|IDS|INDEX|STEPS?"
)
#: Tokens of a model's vocabulary, as in `--eos-token`.
_VOCABULARY = re.compile("BOS|EOS|PAD|UNK|MASK|STOP|SPECIAL|IMAGE|AUDIO|VIDEO|DRAFT")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def sounds_secret(name: str) -> bool:
    """Whether what stands under this name (of a flag, a variable, a key) is not to be shown."""
    words = [word.upper() for word in _PART.findall(name)]
    while words and words[-1].isdigit():  # OPENAI_API_KEY_1
        words.pop()
    last = words[-1] if words else ""
    if not words or _HARMLESS_END.fullmatch(last):
        return False
    if last == "TOKENS":
        return any(map(_SHOWN_TOKENS.fullmatch, words))
    if last == "PWD":
        return len(words) > 1  # MYSQL_PWD, not the current folder
    if last == "TOKEN" and any(map(_VOCABULARY.fullmatch, words)):
        return False
    return any(map(_SECRET_WORD.fullmatch, words))


def hide_env(env: Mapping[str, str]) -> dict[str, str]:
    """Variables as they may be shown."""
    return {name: HIDDEN if value and sounds_secret(name) else hide(value) for name, value in env.items()}


def hide_argv(argv: Sequence[str]) -> list[str]:
    """A command line as it may be shown: `--flag SECRET…`, `--flag=SECRET`, and what `hide` finds within a word."""
    shown: list[str] = []
    flag, values = "", 0
    for word in argv:
        is_value = flag and not word.startswith("--") and (values == 0 or not word.startswith("-"))
        if is_value:
            values += 1
            shown.append(HIDDEN)
            continue
        name, equals, value = word.partition("=")
        secret = name.startswith("-") and sounds_secret(name)
        flag, values = (name, 0) if secret and not equals else ("", 0)
        shown.append(f"{name}={HIDDEN}" if equals and value and _is_secret_pair(name) else hide(word))
    return shown


def _is_secret_pair(name: str) -> bool:
    """Whether a word `name=value` is a secret as a whole, so that a blank in it ends nothing."""
    return re.fullmatch(r"[\w.-]+", name) is not None and sounds_secret(name)


# Whatever the text, in linear time: a name is tried from its beginning only, a value read only behind a secret's name.
_URL = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*+://")
_URL_END = re.compile(r"[\s\"'<>]")
_LONGEST_USER = 2048
_SCHEME = re.compile(r"(?P<scheme>\b(?:Bearer|Basic)\s+)[A-Za-z0-9+/=._~-]{6,}")
_NAME = re.compile(r"(?<![\w.-])(?P<name>[\w.-]++)(?P<quote>[\"']?)(?P<is>\s{0,3}[=:]\s{0,3})")
_VALUE = re.compile(r"(?P<open>[\"'])(?P<quoted>(?:\\.|(?!(?P=open)).)*+)|(?P<bare>[^\s,;&\"'(){}\[\]]++)", re.DOTALL)
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?%?")


def hide(text: str) -> str:
    """A text as it may be shown: without the passwords of URLs, and the values of pairs whose name sounds secret."""
    text = _SCHEME.sub(rf"\g<scheme>{HIDDEN}", _without_users(text) if "://" in text else text)
    parts, at = [], 0
    for pair in _NAME.finditer(text):
        if pair.start() < at or not sounds_secret(pair["name"]):
            continue
        value = _VALUE.match(text, pair.end())
        if value is not None and not _is_prose(pair, value):
            begin, at, start = *value.span("quoted" if value["open"] else "bare"), at
            parts += [text[start:begin], HIDDEN if begin < at else ""]
    return "".join([*parts, text[at:]])


def _without_users(text: str) -> str:
    """URLs without user and password. A password that holds a slash is known by the colon before it, if no port is."""
    parts, at = [], 0
    for scheme in _URL.finditer(text):
        begin = scheme.end()
        if begin < at:
            continue
        blank = _URL_END.search(text, begin, begin + _LONGEST_USER)
        url = text[begin : blank.start() if blank else begin + _LONGEST_USER]
        authority = re.split("[/?#]", url, maxsplit=1)[0]
        password = authority.partition(":")[2]
        within = url if password and not password.isdigit() else authority
        user = within.rfind("@")
        if user >= 0:
            parts += [text[at:begin], HIDDEN]
            at = begin + user
    return "".join([*parts, text[at:]])


def _is_prose(pair: re.Match[str], value: re.Match[str]) -> bool:
    """`token: 17`, `key: prefill.args`: words of a log or a message, not a secret with its name."""
    bare = value["bare"]
    if bare in ("Bearer", "Basic") or HIDDEN in value[0]:
        return True
    if bare is None or pair["quote"]:
        return False
    if _NUMBER.fullmatch(bare):
        return True
    return ":" in pair["is"] and (pair["name"].lower() in _PLAIN_NAMES or bare in _SENTENCE)


_PLAIN_NAMES = frozenset(("key", "keys", "token", "auth", "pass", "pat"))
#: How a sentence about a key goes on: `prefill.env.HF_TOKEN: found 3`.
_SENTENCE = frozenset(
    ("found", "expected", "unknown", "missing", "given", "is", "must", "has", "a", "an", "no", "not", "the")
)
