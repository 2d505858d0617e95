"""Says what a call returns, or how it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.core.errors import HeadgateError


def told(do: Callable[[], Any]) -> str:
    """Return what `do` returns, or its refusal, as text."""
    try:
        return str(do())
    except HeadgateError as error:
        return f"{type(error).__name__}: {error}"
