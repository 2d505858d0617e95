"""Parses names with parameters as users write them: ``streamswitch(0.2, steps=8)``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headgate.core.errors import ConfigError, nearest
from headgate.core.input import shown

_CALL = re.compile(r"\s*([\w-]{1,64})\s*(?:\(([^()]{0,500})\))?\s*")


@dataclass(frozen=True)
class Call:
    """Holds a name, and the arguments in parentheses after the name, as texts."""

    name: str
    arguments: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, what: str, known: Iterable[str], example: str) -> Call:
        """Return the call that `text` states.

        `what`: kind of the named thing, for messages: ``policy``. `known`: the known names. `example`:
        a correct call, for messages. Raises `ConfigError`: `text` is not written like a call, or its
        name is unknown.
        """
        match = _CALL.fullmatch(text)
        if match is None:
            msg = f'cannot read the {what} "{shown(text, 80)}"; write for example {example}.'
            raise ConfigError(msg)
        names = list(known)
        if match[1] not in names:
            hint = nearest(match[1], names) or f"; known: {', '.join(names)}."
            msg = f'unknown {what} "{match[1]}"{hint}'
            raise ConfigError(msg)
        inside = match[2] or ""
        return cls(match[1], tuple(inside.split(",")) if inside.strip() else ())

    def values(self, parameters: Sequence[str], named: Sequence[str] = ()) -> dict[str, str]:
        """Return the text of each parameter in the call: by position or by name.

        `named`: further parameters, by name only. Raises `ConfigError`: the call has too many arguments,
        an unknown parameter, or a parameter twice.
        """
        values: dict[str, str] = {}
        for place, argument in enumerate(self.arguments):
            key, equals, value = (piece.strip() for piece in argument.rpartition("="))
            if not equals:
                if place >= len(parameters):
                    takes = f"{len(parameters)} parameters: {', '.join(parameters)}"
                    msg = f"{self.name} takes {takes if parameters else 'no parameters'}."
                    raise ConfigError(msg)
                key = parameters[place]
            known = (*parameters, *named)
            if key not in known:
                hint = nearest(key, known) or f"; it takes {', '.join(known) or 'none'}."
                msg = f'{self.name} has no parameter "{key}"{hint}'
                raise ConfigError(msg)
            if key in values:
                msg = f"{self.name}: {key} is given twice; give it once."
                raise ConfigError(msg)
            values[key] = value
        return values
