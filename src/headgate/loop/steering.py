"""Turns the SLOs of a job into the settings that the control loop uses for each operator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headgate.core.errors import ConfigError, nearest
from headgate.core.slo import ALERT_S, END_TO_END, Slo
from headgate.loop.settings import OperatorSettings

BUDGET_SHARE = 0.8
"""Share of the tightest bound that ``budget("auto")`` gives the slots of a batch; larger: longer ones."""

_SHARE_MAX = 0.999
"""Quantile that replaces ``max``: an exponential tail has records above every bound."""


@dataclass(frozen=True)
class LatencyTarget:
    """Holds the tightest of the latency SLOs for one operator."""

    slo: Slo

    def mean_bound_s(self, floor_s: float) -> float:
        """Return the mean latency that makes the SLO likely to hold, in seconds.

        Policies model a mean. If sojourn times above the floor are exponential, as in the policies'
        queue, the p-quantile is the floor plus ``ln(1 / (1 - p))`` times the mean above the floor.
        """
        slo = self.slo
        if slo.statistic == "mean":
            return slo.bound
        share = min(slo.quantile, _SHARE_MAX)
        floor_s = min(floor_s, slo.bound / 2)
        return floor_s + (slo.bound - floor_s) / max(1.0, math.log(1.0 / (1.0 - share)))

    def alert_s(self, floor_s: float) -> float:
        """Return the alert threshold above a floor, below half of `mean_bound_s`.

        StreamSwitch's default of 100 ms is for engines without a floor. The latency of an idle
        micro-batch job varies by about half its floor, since a record waits for its batch. With a
        smaller threshold every slot would sometimes exceed it, and no slot could be removed.
        """
        alert_s = self.slo.alert_s
        if alert_s == ALERT_S:
            alert_s = max(alert_s, floor_s / 2)
        return min(alert_s, self.mean_bound_s(floor_s) / 2)


def targets_of(slos: Sequence[Slo], operators: Sequence[str]) -> dict[str, LatencyTarget]:
    """Return the target of each operator in the scope of an SLO.

    Raises `ConfigError`: an SLO names an unknown operator, or does not bound a latency.
    """
    targets: dict[str, LatencyTarget] = {}
    for slo in slos:
        if not slo.is_latency:
            msg = f'SLO "{slo}" bounds no latency; a single query is steered by latency only.'
            raise ConfigError(msg)
        named = slo.operator
        if named is not None and named not in operators:
            hint = nearest(named, operators) or f"; this query has {', '.join(operators)}."
            msg = f'SLO "{slo}" names the unknown operator "{named}"{hint}'
            raise ConfigError(msg)
        for operator in operators if named is None else (named,):
            new, held = LatencyTarget(slo), targets.get(operator)
            if held is None or new.mean_bound_s(0.0) < held.mean_bound_s(0.0):
                targets[operator] = new
    return targets


def end_to_end_s(slos: Sequence[Slo], operators: Sequence[str]) -> float | None:
    """Return the tightest bound on the sum of the operators' mean latencies.

    None without such an SLO, and for a single operator, whose own bound this is.
    """
    bounds = [LatencyTarget(slo).mean_bound_s(0.0) for slo in slos if slo.scope == END_TO_END]
    return min(bounds, default=None) if len(operators) > 1 else None


def settings_of(
    targets: Mapping[str, LatencyTarget],
    *,
    slots_min: int,
    slots_max: int,
    unsplittable: Mapping[str, str],
) -> dict[str, OperatorSettings]:
    """Return the control loop's settings of each operator."""
    return {
        name: OperatorSettings(
            bound_s=target.mean_bound_s(0.0),
            window_s=target.slo.window_s,
            slots_max=slots_max,
            slots_min=slots_min,
            alert_s=target.alert_s(0.0),
            success=target.slo.success,
            unsplittable=unsplittable.get(name, OperatorSettings.unsplittable),
        )
        for name, target in targets.items()
    }


def budget_s(slos: Sequence[Slo]) -> float | None:
    """Return the time that ``budget("auto")`` gives the slots of a batch; None without an SLO."""
    bounds = [slo.bound for slo in slos if slo.is_latency]
    return BUDGET_SHARE * min(bounds) if bounds else None
