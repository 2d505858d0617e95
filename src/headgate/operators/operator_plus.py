"""Describes O+, STRETCH's general operator with windows, as data.

Event time is an integer in the operator's own unit (STRETCH's delta is 1); on Spark the unit is 1 us.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headgate.core.calls import refuse_call
from headgate.core.duration import parse_duration_s
from headgate.core.errors import ConfigError, ProtocolError, nearest

Key = Hashable
Payload = tuple[Any, ...]
State = Any
"""State of a window instance; None is the empty state."""

NO_WATERMARK = -(2**63)
"""Watermark of an instance that has received nothing; below every event time."""


class WindowType(Enum):
    """Names the type of windows, WT: one window instance per key, or one per key and left boundary."""

    SINGLE = "single"
    """One per key, which moves forward; records enter and leave it. Needs records sorted by time."""
    MULTI = "multi"
    """One per key and left boundary; a record updates all instances whose span holds the record."""


@dataclass(frozen=True, slots=True)
class Record:
    """Holds one record of an input."""

    time: int
    """Event time."""
    payload: Payload
    """Values, in the schema of the input."""
    input: int = 0
    """Number of the record's input, from 0."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """Holds an explicit watermark: no record before `time` follows."""

    time: int


@dataclass(frozen=True, slots=True)
class Window:
    """Holds one window instance, as the three functions get it: the span ``[left, right)`` of a key."""

    state: State
    left: int
    right: int
    key: Key


Windows = tuple[Window, ...]
"""The window instances of one key and one left boundary, one for each input."""

Update = Callable[[Windows, Record], tuple[Sequence[State], Iterable[Payload]]]
Output = Callable[[Windows], Iterable[Payload]]
Slide = Callable[[Windows], Sequence[State]]

_ARGUMENTS = {
    "keys": ("record",),
    "update": ("windows", "record"),
    "output": ("windows",),
    "slide": ("windows",),
}
"""Arguments of an operator's functions, by the function's name."""


@dataclass(frozen=True)
class OperatorPlus:
    """Defines O+(WA, WS, I, f_MK, WT, S, f_U, f_O, f_S).

    Parameters
    ----------
    window_advance, window_size : int
        WA and WS; windows are ``[l * WA, l * WA + WS)`` for every integer l; 1 <= WA <= WS.
    keys : callable, optional
        f_MK: the keys of a record, none or several. None if the engine computes the keys.
    schema : tuple of str
        Column names of an output record; empty if the engine knows them.
    inputs : int
        I, the number of inputs; each input has a window of its own.
    update : callable, optional
        f_U: takes the window instances of one key and left boundary, and a record in them; returns new
        states, and payloads to emit. By default, the window of the record's input collects the record.
    output : callable, optional
        f_O: takes ended window instances; returns payloads to emit. By default, emits nothing.
    slide : callable, optional
        f_S, SINGLE only: takes window instances after a move forward (``left`` is the new boundary);
        returns their states. By default, drops records before ``left``.
    distinct : bool
        True if a record's keys are a set. By default they are a bag, as with `explode`: a record that
        has a key twice updates it twice.

    Raises
    ------
    ConfigError    WA, WS or I is out of range, or all three functions are missing.

    References
    ----------
    [STRETCH] 2.1, 4.2, table 1, definition 4. Differs: f_mu belongs to an epoch, not to the
    operator; keys are a bag unless `distinct` (definition 4 says set, algorithm 8 a bag);
    WA = WS is allowed (operator 6 has it, section 3 excludes it).
    """

    window_advance: int
    window_size: int
    keys: Callable[[Record], Iterable[Key]] | None = None
    window_type: WindowType = WindowType.MULTI
    schema: tuple[str, ...] = ()
    inputs: int = 1
    update: Update | None = None
    output: Output | None = None
    slide: Slide | None = None
    distinct: bool = False

    def __post_init__(self) -> None:
        for name, arguments in _ARGUMENTS.items():
            if getattr(self, name) is not None:
                refuse_call(getattr(self, name), f"{name} of the operator", *arguments)
        if not 1 <= self.window_advance <= self.window_size:
            msg = (
                f"window_advance={self.window_advance} does not fit window_size="
                f"{self.window_size}; use 1 to {self.window_size}."
            )
            raise ConfigError(msg)
        if self.inputs < 1:
            msg = f"inputs={self.inputs} is out of range; an operator has at least one input."
            raise ConfigError(msg)
        if self.update is None and self.output is None and self.slide is None:
            msg = "an operator without update, output and slide emits nothing; give one of them."
            raise ConfigError(msg)

    @classmethod
    def over(cls, advance: str, size: str, **given: Any) -> OperatorPlus:
        """Return an operator whose times are microseconds.

        `advance`, `size`: durations, such as ``"1 minute"`` and ``"10 minutes"``. `given`: the other
        parameters, by name; `window_type` may be a string.
        """
        if isinstance(kind := given.get("window_type"), str):
            kinds = [window.value for window in WindowType]
            if kind not in kinds:
                msg = f'window_type="{kind}" is no type of windows{nearest(kind, kinds) or "."}'
                raise ConfigError(msg)
            given["window_type"] = WindowType(kind)
        return cls(_duration_us(advance), _duration_us(size), **given)

    def keys_of(self, record: Record) -> tuple[Key, ...]:
        """Return the record's keys as `keys` returns them; without duplicates if `distinct`.

        Raises `ConfigError`: the operator has no f_MK.
        """
        if self.keys is None:
            msg = "an operator without keys cannot tell a record's keys; give it a function."
            raise ConfigError(msg)
        keys = self.keys(record)
        return tuple(dict.fromkeys(keys)) if self.distinct else tuple(keys)

    def earliest_left(self, time: int) -> int:
        """Return the left boundary of the first window that holds `time`."""
        return ((time - self.window_size) // self.window_advance + 1) * self.window_advance

    def latest_left(self, time: int) -> int:
        """Return the left boundary of the last window that holds `time`."""
        return time // self.window_advance * self.window_advance

    def updated(self, windows: Windows, record: Record) -> tuple[Sequence[State], list[Payload]]:
        """Return the states and payloads of f_U, or of its default."""
        if self.update is None:
            states = [window.state for window in windows]
            states[record.input] = (*(states[record.input] or ()), record)
            return states, []
        states_after, payloads = self.update(windows, record)
        return self._checked(states_after, "update"), list(payloads)

    def emitted(self, windows: Windows) -> list[Payload]:
        """Return the payloads of f_O, or of its default."""
        return [] if self.output is None else list(self.output(windows))

    def slid(self, windows: Windows) -> Sequence[State]:
        """Return the states of f_S, or of its default."""
        if self.slide is None:
            return [_without_stale(window) for window in windows]
        return self._checked(self.slide(windows), "slide")

    def _checked(self, states: Sequence[State], function: str) -> Sequence[State]:
        if len(states) != self.inputs:
            msg = (
                f"{function} returned {len(states)} states for an operator of {self.inputs} inputs; "
                "return one for each."
            )
            raise ProtocolError(msg)
        return states


def _duration_us(text: str) -> int:
    return round(parse_duration_s(text) * 1_000_000)


def _without_stale(window: Window) -> State:
    if window.state is None:
        return None
    if not isinstance(window.state, tuple):
        msg = (
            f"the state of key {window.key!r} is no tuple of records, so the default slide cannot "
            "tell what is stale; give the operator a slide function."
        )
        raise ConfigError(msg)
    return tuple(r for r in window.state if r.time >= window.left) or None
