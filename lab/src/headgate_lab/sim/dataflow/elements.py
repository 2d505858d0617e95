"""Defines the elements of a channel: records, and the control elements between them.

Every element has `count`, its size in a cache; the size of control elements is 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(slots=True, eq=False)
class Record:
    """Stands for records of one key that travel together.

    Attributes
    ----------
    time_s : float
        Due time at the source, whatever the back-pressure; also the event time.
    count : int
        Number of records; >= 1.
    unit : int
        Unit of migration: a key group, or a part of one; set at every keyed edge.
    marker : bool
        Whether its latency is measured: it then passes windows at once, up to the sink (DRRS V-A).
    origin, number : int
        Source slot, and position among that slot's records of the key.
    value : Any
        Result of the operators.
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
    """Announces that no record with an earlier time follows in this channel."""

    time_s: float
    count: ClassVar[int] = 0


@dataclass(slots=True, eq=False)
class Signal:
    """Carries a scaling signal; its meaning depends on the method.

    Attributes
    ----------
    kind : str
        *trigger*, *confirm*, *opening* (DRRS) or *coupled* (the others).
    step : Any
        The step of the signal.
    sender : Slot
        The slot that sent the signal, also for a re-routed one.
    """

    kind: str
    step: Any
    sender: Any = None
    count: ClassVar[int] = 0


@dataclass(slots=True, eq=False)
class Barrier:
    """Carries a checkpoint barrier, with the signals merged into it (DRRS IV-C).

    Attributes
    ----------
    riders : list of Signal
        Merged signals, handled in this order once the checkpoint is taken.
    """

    number: int
    riders: list[Signal] = field(default_factory=list)
    count: ClassVar[int] = 0


Element = Record | Watermark | Signal | Barrier
