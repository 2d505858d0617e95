"""Defines topologies of the Henge paper, graphs of operators with service times, for the simulated fleet.

Marks: [P] stated in the paper, [R] from the authors' public code, [I] chosen here, since no source states
the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headgate.core.errors import ConfigError

PASS_S = 0.0005
"""Service time of an operator that only forwards records, in seconds [I]."""

SENTENCE_CHARACTERS = (28, 73, 121, 30, 6, 31, 10, 23)
"""Lengths of the eight sentences that PageLoad's spouts send in turn [R]."""


@dataclass(frozen=True)
class OperatorShape:
    """Describes one operator of a topology.

    Attributes
    ----------
    parents : tuple of str
        Parent operators; empty for a source. Each parent sends every output record to each of its
        children.
    service_s : float
        Service time of a record in a slot on an idle host, in seconds; 0 for a source.
    cpu_s : float
        Part of the service time on a core, in seconds; the rest is waiting (sleep, a remote store).
    variation : float
        Squared coefficient of variation of the service time.
    slots, slots_max : int
        Slots at the start, and the most slots (Storm's executors and tasks).
    selectivity : float
        Output records per input record, for each child.
    retention_s : float
        Time for which a record stays in memory, in seconds.
    record_bytes : float
        Size of a waiting or retained record.
    """

    parents: tuple[str, ...] = ()
    service_s: float = PASS_S
    cpu_s: float = PASS_S / 5
    variation: float = 1.0
    slots: int = 10
    slots_max: int = 20
    selectivity: float = 1.0
    retention_s: float = 0.0
    record_bytes: float = 500.0

    @property
    def source(self) -> bool:
        """Return whether the operator has no parents."""
        return not self.parents


@dataclass(frozen=True)
class Topology:
    """Describes a job's graph of operators.

    Attributes
    ----------
    operators : mapping of str to OperatorShape
        Operators, parents before children.
    rate : float
        Records per second of all sources together, unless an experiment sets another rate.

    Raises
    ------
    ConfigError
        An operator comes before one of its parents.
    """

    operators: Mapping[str, OperatorShape]
    rate: float = 200.0

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for name, shape in self.operators.items():
            unknown = [parent for parent in shape.parents if parent not in seen]
            if unknown:
                msg = f"{name} reads {unknown[0]}, which does not stand before it; reorder them."
                raise ConfigError(msg)
            seen.add(name)

    def with_slots(self, slots: Mapping[str, int]) -> Topology:
        """Return the topology with other numbers of slots at the start."""
        operators = {
            name: replace(shape, slots=slots[name]) if name in slots else shape
            for name, shape in self.operators.items()
        }
        return replace(self, operators=operators)

    def scaled(self, factor: float) -> Topology:
        """Return the topology with `factor` times the rate, slots and tasks."""
        operators = {
            name: replace(
                shape,
                slots=max(1, round(shape.slots * factor)),
                slots_max=max(1, round(shape.slots_max * factor)),
            )
            for name, shape in self.operators.items()
        }
        return Topology(operators, self.rate * factor)


def _sentence_service() -> tuple[float, float]:
    """Return mean (s) and squared coefficient of variation of a sleep of one ms per character."""
    mean = sum(SENTENCE_CHARACTERS) / len(SENTENCE_CHARACTERS)
    variance = sum((n - mean) ** 2 for n in SENTENCE_CHARACTERS) / len(SENTENCE_CHARACTERS)
    return mean / 1e3, variance / mean**2


def page_load() -> Topology:
    """Return Yahoo's PageLoad: a chain whose aggregate sleeps a millisecond per character.

    References
    ----------
    Henge figure 7; executors, tasks, rate and sleep [R]. Four aggregate slots serve 99 of 200 records/s,
    so such a job cannot keep up at the start. Service times of the other operators [I].
    """
    sleep_s, variation = _sentence_service()
    aggregate = OperatorShape(
        ("filter_2",), sleep_s, cpu_s=PASS_S, variation=variation, slots=4, slots_max=40
    )
    operators = {
        "spout": OperatorShape(service_s=0.0),
        "transform": OperatorShape(("spout",)),
        "filter": OperatorShape(("transform",)),
        "join": OperatorShape(("filter",)),
        "filter_2": OperatorShape(("join",)),
        "aggregate": aggregate,
        "sink": OperatorShape(("aggregate",)),
    }
    return Topology(operators)


def word_count(*, write_s: float = 0.0) -> Topology:
    """Return spout, split, count; in the stateful variant, count writes each count to a store.

    Parameters
    ----------
    write_s : float
        Time of a write, in seconds; 0, the default, for the stateless variant.

    References
    ----------
    Henge 8.3 [P]; service times and their spread [I].
    """
    count = OperatorShape(
        ("split",), 0.010 + write_s, cpu_s=PASS_S, variation=1.0, slots=4, slots_max=400
    )
    split = OperatorShape(("spout",), 0.010, cpu_s=PASS_S, slots=4, slots_max=400, selectivity=5.0)
    operators = {"spout": OperatorShape(service_s=0.0), "split": split, "count": count}
    return Topology(operators)


def diamond() -> Topology:
    """Return a spout, four bolts that each get every record, and an output that reads all four [R]."""
    bolts = {f"bolt_{i}": OperatorShape(("spout",), slots=4) for i in (1, 2, 3, 4)}
    busy = {name: replace(shape, service_s=0.010, slots_max=40) for name, shape in bolts.items()}
    operators = {
        "spout": OperatorShape(service_s=0.0),
        **busy,
        "output": OperatorShape(tuple(busy)),
    }
    return Topology(operators)


def star() -> Topology:
    """Return two spouts, one bolt that reads both, and two sinks; the wiring is [I]."""
    centre = OperatorShape(("spout_1", "spout_2"), 0.020, slots=4, slots_max=40)
    operators = {
        "spout_1": OperatorShape(service_s=0.0),
        "spout_2": OperatorShape(service_s=0.0),
        "centre": centre,
        "sink_1": OperatorShape(("centre",)),
        "sink_2": OperatorShape(("centre",)),
    }
    return Topology(operators)


def linear() -> Topology:
    """Return a spout and three bolts in a row [R]."""
    operators = {
        "spout": OperatorShape(service_s=0.0),
        "bolt_1": OperatorShape(("spout",), 0.010, slots=4, slots_max=40),
        "bolt_2": OperatorShape(("bolt_1",), 0.020, slots=4, slots_max=40),
        "output": OperatorShape(("bolt_2",)),
    }
    return Topology(operators)


def retained_join() -> Topology:
    """Return a join of two spouts that keeps each record for 30 s.

    References
    ----------
    Henge 8.5 [P]; service time and 20 KB per record [I].
    """
    join = OperatorShape(
        ("left", "right"),
        0.040,
        cpu_s=PASS_S,
        slots=4,
        slots_max=40,
        retention_s=30.0,
        record_bytes=20_000.0,
    )
    operators = {
        "left": OperatorShape(service_s=0.0),
        "right": OperatorShape(service_s=0.0),
        "join": join,
        "output": OperatorShape(("join",)),
    }
    return Topology(operators)
