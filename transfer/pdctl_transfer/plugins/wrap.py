"""Methods of an engine's classes, wrapped in place, once: for engines that have no registry of hooks."""

import functools
from collections.abc import Callable
from typing import Any


def instead(owner: type, name: str, hook: Callable[..., Any]) -> None:
    """Replace a method by `hook(original, self, …)`."""
    original = getattr(owner, name)
    if getattr(original, "_pdctl", False):
        return

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return hook(original, self, *args, **kwargs)

    method._pdctl = True  # type: ignore[attr-defined]
    setattr(owner, name, method)


def before(owner: type, name: str, hook: Callable[..., Any]) -> None:
    """Call `hook(self, …)` first; what it raises, the method raises."""

    def run(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        hook(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    instead(owner, name, run)


def after(owner: type, name: str, hook: Callable[..., Any]) -> None:
    """Call `hook(self, result)` when the method has returned."""

    def run(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        hook(self, result)
        return result

    instead(owner, name, run)
