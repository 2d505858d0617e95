"""Holds the settings that a user gives for one operator."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.core.errors import ConfigError
from headgate.core.slo import SUCCESS


@dataclass(frozen=True)
class OperatorSettings:
    """Holds the latency SLO and the limits of one operator; may change while the job runs.

    Raises `ConfigError`: a value is out of range.
    """

    bound_s: float
    """L: bound on the mean latency, in seconds; more than `alert_s`."""
    window_s: float
    """T: the window that the mean is taken over, in seconds; more than 0."""
    slots_max: int
    """Most slots the operator may have; at least `slots_min`."""
    slots_min: int = 1
    """Fewest slots the operator may have; at least 1."""
    success: float = SUCCESS
    """Share of windows in which the bound is to hold, above 0, at most 1."""
    limit: str = ""
    """Why more than `slots_max` slots would be of no use; empty where the user set `slots_max`."""
    alert_s: float = 0.1
    """l: the alert threshold above the floor, in seconds; StreamSwitch's default."""
    floor_s: float | None = None
    """Latency of an idle job, in seconds: 0 for a continuous engine; None to measure it."""
    unsplittable: str = "the engine does not split key groups"
    """Why key groups of the operator cannot be split over slots; empty where they can."""
    initial_service_rate: float | None = None
    """mu of slots that have completed no record, records per second; None to wait for a completion.

    The loop reads it once, when it is made; a later change has no effect."""

    def __post_init__(self) -> None:
        if not 0.0 < self.alert_s < self.bound_s:
            msg = (
                f"alert threshold {self.alert_s:g} s does not lie between 0 and the latency bound "
                f"{self.bound_s:g} s; use a tenth of the bound."
            )
            raise ConfigError(msg)
        if not self.window_s > 0.0:
            msg = f"window {self.window_s:g} s is too short; use more than 0 s."
            raise ConfigError(msg)
        if not 1 <= self.slots_min <= self.slots_max:
            msg = (
                f"slots min={self.slots_min} max={self.slots_max} is out of range; "
                "use 1 <= min <= max."
            )
            raise ConfigError(msg)
        if not 0.0 < self.success <= 1.0:
            msg = f"success={self.success:g} is out of range; use a share above 0, at most 1."
            raise ConfigError(msg)
        if self.floor_s is not None and not self.floor_s >= 0.0:
            msg = f"floor {self.floor_s:g} s is negative; use 0 s or leave it out to measure it."
            raise ConfigError(msg)
