"""Tells whether a user's function can be called as it will be."""

from __future__ import annotations

import inspect
from types import CodeType
from typing import Any

from headgate.core.errors import ConfigError
from headgate.core.frames import place_of


def refuse_call(function: Any, what: str, *arguments: str, named: tuple[str, ...] = ()) -> None:
    """Refuse a function that cannot take what it will be called with.

    What does not say its parameters (some functions in C, objects with a ``__signature__`` of their
    own) is not refused, nor is a decorator for what the function below it takes. Raises
    `ConfigError`.

    Parameters
    ----------
    what : str    For the message: ``Alarm.handleExpiredTimer``.
    arguments : str    Names of what is given by position, for the message.
    named : tuple of str    Names of what is given by name.
    """
    why = _problem(function, len(arguments), named)
    if why is None:
        return
    listed = ", ".join([*arguments, *(f"{name}=..." for name in named)])
    where = place_of(function)
    msg = (
        f"{what}{where and f' {where}'} is called as ({listed}), and cannot be: {why}; change its "
        "parameters."
    )
    raise ConfigError(msg)


def _problem(function: Any, positional: int, named: tuple[str, ...]) -> str | None:
    """Return why a call would fail, in Python's own words; None where it would not, or nobody knows."""
    if not callable(function):
        return f"it is {type(function).__name__}"
    if hasattr(function, "__signature__"):
        return None
    try:
        # not of what a decorator says that it wraps: the decorator itself is called
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*([None] * positional), **dict.fromkeys(named))
    except TypeError as error:
        return str(error)
    return None


def uses_name(kind: type, name: str) -> bool:
    """Return whether the methods of a class, or functions within them, use an attribute of that name."""
    members = (m for base in kind.__mro__ for m in vars(base).values())
    functions = (getattr(m, "fget", None) or inspect.unwrap(m) for m in members)
    codes = [code for f in functions if isinstance(code := getattr(f, "__code__", None), CodeType)]
    for code in codes:
        if name in code.co_names:
            return True
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return False
