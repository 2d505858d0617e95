"""Checks that a user's function accepts the arguments that headgate will pass."""

from __future__ import annotations

import inspect
from types import CodeType
from typing import Any

from headgate.core.errors import ConfigError
from headgate.core.frames import place_of


def refuse_call(function: Any, what: str, *arguments: str, named: tuple[str, ...] = ()) -> None:
    """Refuse a function that does not accept the arguments of its future call.

    Accepts a function without known parameters (some functions in C, objects with their own
    ``__signature__``). For a decorated function, only the decorator's parameters count. Raises
    `ConfigError`: the call would fail.

    Parameters
    ----------
    what : str    Name of the function in the message: ``Alarm.handleExpiredTimer``.
    arguments : str    Names of the positional arguments, for the message.
    named : tuple of str    Names of the keyword arguments.
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
    """Return why a call would fail, in Python's own words; None if it would not, or if unknown."""
    if not callable(function):
        return f"it is {type(function).__name__}"
    if hasattr(function, "__signature__"):
        return None
    try:
        # the signature of the decorator itself, since that is called, and not the wrapped function
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*([None] * positional), **dict.fromkeys(named))
    except TypeError as error:
        return str(error)
    return None


def uses_name(kind: type, name: str) -> bool:
    """Return whether the methods of a class, or functions within them, use the name `name`."""
    members = (m for base in kind.__mro__ for m in vars(base).values())
    functions = (getattr(m, "fget", None) or inspect.unwrap(m) for m in members)
    codes = [code for f in functions if isinstance(code := getattr(f, "__code__", None), CodeType)]
    for code in codes:
        if name in code.co_names:
            return True
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return False
