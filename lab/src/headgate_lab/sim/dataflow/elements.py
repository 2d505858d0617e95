"""Defines the elements of a channel: records, and the control elements between them.

Every element has `count`, the room that it takes in a cache; that of control elements is 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(slots=True, eq=False)
class Record:
    """Records of one key that travel together.

    Attributes
    ----------
    time_s : float
        When its source should have had it, whatever the back-pressure: the event time too.
    count : int
        How many records it stands for; >= 1.
    unit : int
        What moves with its key: a key group, or a part of one; set at every keyed edge.
    marker : bool
        Whether it is timed: it then passes windows at once and on to the sink (DRRS V-A).
    origin, number : int
        Its source slot, and its place among that slot's records of the key.
    value : Any
        What the operators make of it.
    """

    key: int
    time_s: float
    count: int = 1
    unit: int = 0
    marker: bool = False
    origin: int = 0
    number: int = 0
    value: Any = None


@dataclass(slots=True, eq=False)
class Watermark:
    """No record with an earlier time follows in this channel."""

    time_s: float
    count: ClassVar[int] = 0


@dataclass(slots=True, eq=False)
class Signal:
    """A scaling signal: what it means is its method's business.

    Attributes
    ----------
    kind : str
        *trigger*, *confirm*, *opening* (DRRS) or *coupled* (the others).
    step : Any
        What it is about: its subscale, or its step.
    sender : Slot
        The slot that it comes from, for a signal that is re-routed.
    """

    kind: str
    step: Any
    sender: Any = None
    count: ClassVar[int] = 0


@dataclass(slots=True, eq=False)
class Barrier:
    """A checkpoint barrier, with the signals merged into it (DRRS IV-C).

    Attributes
    ----------
    riders : list of Signal
        Answered in this order once the checkpoint is taken.
    """

    number: int
    riders: list[Signal] = field(default_factory=list)
    count: ClassVar[int] = 0


Element = Record | Watermark | Signal | Barrier
