"""Describes a simulated fleet: hosts, the cost of a change of slots, jobs that come and go."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headgate.control.limits import check_range
from headgate.core.errors import ConfigError
from headgate.core.utility import Metric, Utility
from headgate_lab.workloads.topologies import Topology

Rate = Callable[[float], float]
"""Records per second that a job's sources send together, by the time in seconds."""


@dataclass(frozen=True)
class Change:
    """Holds the cost of a change of slots for its job."""

    pause_s: float = 0.0
    """Time for which the job stands still, in seconds; >= 0."""
    loses_queues: bool = False
    """Whether the waiting records in the job are lost."""

    def __post_init__(self) -> None:
        check_range("change", "pause_s", self.pause_s, 0.0)


IN_PLACE = Change()
"""headgate: slots change between two batches, without a pause and without losses."""

RESTART = Change(pause_s=5.0, loses_queues=True)
"""Storm without acknowledgements, as in Henge's experiments: workers restart, and their queues are lost.
The length of the pause is [I]."""


@dataclass(frozen=True)
class Cluster:
    """Describes the hosts that jobs share."""

    hosts: int = 10
    """Number of hosts; >= 1. Henge 8: 10."""

    cores: float = 4.0
    """Cores of each; > 0. Henge 8 names 2.4 GHz and 12 GB only; such machines had four [I]."""

    memory_bytes: float = 12e9
    """Memory of each; > 0. Henge 8."""

    slots_max: int = 1_000_000
    """The budget: slots of all operators together; Storm's threads have none."""

    slot_overhead: float = 0.005
    """Share of a core that a slot always takes, for polling and context switches [I]."""

    slot_bytes: float = 5e6
    """Memory that a slot takes [I]."""

    noise: float = 0.02
    """Standard deviation of other processes' load on a host, as a share of its cores [I]."""

    change: Change = IN_PLACE
    """Cost of a change of slots."""

    background: Callable[[float, int], float] = field(default=lambda time_s, host: 0.0)
    """Cores that other processes take of a host, by the time in seconds and the host."""

    def __post_init__(self) -> None:
        check_range("cluster", "hosts", self.hosts, 1)
        for name in ("cores", "memory_bytes"):
            check_range("cluster", name, getattr(self, name), 0.0, above=True)
        for name in ("slot_overhead", "slot_bytes", "noise", "slots_max"):
            check_range("cluster", name, getattr(self, name), 0.0)


@dataclass(frozen=True)
class SimJob:
    """Describes a job: its topology, its utility and its arrivals.

    Raises
    ------
    ConfigError
        An intent has a percentile; a fluid has means only.
    """

    topology: Topology
    utility: Utility
    rate: Rate | None = None
    """Arrival rate; None: the topology's constant rate."""

    hosts: int = 1_000_000
    """Most hosts for the job's slots (Storm's workers); >= 1."""

    arrives_s: float = 0.0
    """Time of submission, in seconds."""

    leaves_s: float = math.inf
    """Time of removal, in seconds."""

    def __post_init__(self) -> None:
        check_range("job", "hosts", self.hosts, 1)
        for intent in self.utility.intents:
            if intent.metric is Metric.LATENCY and intent.percentile is not None:
                msg = (
                    f"a simulated fleet knows mean latencies, not the {intent.percentile:g}th "
                    "percentile; leave the percentile out."
                )
                raise ConfigError(msg)

    def rate_at(self, time_s: float) -> float:
        """Return the records per second that arrive at `time_s`."""
        return self.topology.rate if self.rate is None else self.rate(time_s)


Jobs = Mapping[str, SimJob]
"""Jobs by name, in the order of submission."""
