"""Admits jobs into a fleet: checks the fleet's limits, and checks and prepares each added job."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from headgate.control.limits import check_range
from headgate.control.registry import replica_policy
from headgate.control.slots.static import Static
from headgate.core.errors import ConfigError
from headgate.core.intents import utility_of
from headgate.core.utility import Shape, Utility
from headgate.spark.api.query import Query
from headgate.spark.api.writer import Writer
from headgate.spark.fleet.fleet_round import every_s
from headgate.spark.fleet.pool_probe import PoolProbe
from headgate.spark.fleet.probe import Probe
from headgate.spark.read.stages import has_stages
from headgate.spark.settings.query_settings import QuerySettings

WINDOW_ROUNDS = 6
"""Number of rounds over which intents are measured: Henge's minute, six times 10 s."""


@dataclass(frozen=True)
class FleetLimits:
    """Holds the limits of a fleet, whatever its policy."""

    slots: int
    """The budget: slots of all operators of all jobs together; >= 1."""
    round_s: float
    """Time between two rounds, in seconds; > 0. Henge 5.1."""
    actions_per_minute: int
    """The most actions within a minute; >= 1."""
    hang_s: float
    """Time without the end of a batch after which a job counts as hung, in seconds; > 0."""
    advise: bool
    """Whether the fleet only writes its decisions into the journal, and changes nothing."""
    cooldown_s: float
    """Time after an action without another decision, in seconds; >= 0."""

    def __post_init__(self) -> None:
        check_range("fleet", "slots", self.slots, 1)
        check_range("fleet", "actions_per_minute", self.actions_per_minute, 1)
        for name in ("round_s", "hang_s"):
            check_range("fleet", name, getattr(self, name), 0.0, above=True)
        check_range("fleet", "cooldown_s", self.cooldown_s, 0.0)


@dataclass
class Prepared:
    """Holds a job that was added to a fleet and has not been started."""

    df: DataFrame
    settings: QuerySettings
    probe: Probe | PoolProbe
    utility: Utility
    own_policy: bool
    """Whether the job's own policy uses up to the granted slots; else the fleet sets the slots."""

    def first_slots(self, cores: int) -> int:
        """Return the job's first slots, as far as they are known before its plan is read."""
        first = self.settings.slots.start
        return min(4, cores) if first == "auto" else int(first)


def taken_over(
    writer: Writer, priority: float, utility: Shape | None, limits: FleetLimits
) -> tuple[str, Prepared]:
    """Return a job's name, and the job as the fleet runs it.

    The query keeps only its latency SLOs: its own policy steers by them, or the query only reports on
    them. A stateless query with Python stages and without a policy gets pools, with policy ``psps``.
    The user's writer does not change. Raises `ConfigError`: as `Fleet.add`.
    """
    settings = writer.settings
    name, policy = settings.name, settings.policy
    if name is None:
        msg = 'a job of a fleet needs a name; add .queryName("counts") to its writer.'
        raise ConfigError(msg)
    if settings.fallback != "error":
        msg = f'job "{name}" may become plain Spark, which has no slots; leave out .fallback().'
        raise ConfigError(msg)
    window_s, period_s = WINDOW_ROUNDS * limits.round_s, every_s(settings.trigger)
    if period_s >= window_s:
        # Between two batches the fleet would have no measurements, and could decide nothing.
        msg = (
            f'job "{name}" runs a batch every {period_s:g} s, and intents are measured over '
            f"{window_s:g} s; use a shorter trigger, or a longer round."
        )
        raise ConfigError(msg)
    if policy is None and settings.replica_policy is None and has_stages(writer.df):
        # a fleet's policy cannot size pools of replicas
        settings = replace(settings, replica_policy=replica_policy("psps"))
    worth = utility_of(settings.slos, priority, utility)
    latencies = tuple(slo for slo in settings.slos if slo.is_latency)
    pools, any_policy = settings.replica_policy is not None, settings.replica_policy or policy
    own_policy = any_policy is not None and any_policy.name != "static"
    if policy is not None and own_policy and not pools and not latencies:
        msg = (
            f'job "{name}" has the policy {policy.name} and no latency to steer by; add '
            '.slo("mean < 1 s over 1 s"), or leave out .policy(), so that the fleet decides.'
        )
        raise ConfigError(msg)
    probe = PoolProbe(window_s) if pools else Probe(window_s, settings.slots.min)
    settings = replace(settings, policy=policy if own_policy else Static(), slos=latencies)
    return name, Prepared(writer.df, settings, probe, worth, own_policy)


def check_has_slots(name: str, query: Query) -> None:
    """Raise ConfigError if a running query has no slots that a fleet could grant."""
    if not query._slots.held():
        msg = (
            f'job "{name}" has neither a stateful operator nor a Python stage, so a fleet has no slots '
            "to give it; run it beside the fleet, with its own start()."
        )
        raise ConfigError(msg)
