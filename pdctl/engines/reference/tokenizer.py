"""Byte-level tokens: a byte is its own id; ids above are specials without text."""

from collections.abc import Iterable, Sequence


def encode(text: str) -> list[int]:
    """UTF-8 bytes of a text."""
    return list(text.encode())


def decode(tokens: Iterable[int]) -> str:
    """Text of tokens; specials have none, bytes that are no UTF-8 become U+FFFD."""
    return bytes(token for token in tokens if token < 256).decode(errors="replace")


def chat_prompt(messages: Sequence[tuple[str, str]]) -> str:
    """A plain chat template: one `role: content` line a message, and the assistant's turn opened."""
    return "".join(f"{role}: {content}\n" for role, content in messages) + "assistant:"
