"""Forecasts the input of PSPS, and runs PSPS and its rivals, on the rates of real web servers.

The paper shows [P]: nothing; it takes the last value for the next, and names a model of the input as
future work (VI). So the last value is both the paper's forecast and the floor.

World Cup 1998 in intervals of 10 minutes, of which the job runs three days around the steepest rise;
SDSC and EPA 1995, a day each, in intervals of 5 minutes. An interval of the log lasts 30 s here, and
rates are scaled so that each operator of the tweets' application needs 8 replicas at the peak. A
forecast has seen the log up to where the run begins. Holt-Winters and the season in the blend need
two days, which the two logs of 1995 do not have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headgate.control.estimators.forecast import Forecaster, HoltWinters, Naive, daily_blend
from headgate.control.pools.psps import Psps
from headgate.core.errors import ConfigError, NotReady
from headgate.report.plot import panels
from headgate.workloads.traces import read_totals
from headgate_lab.experiments.psps.runs import KEEPING, SHUFFLED, Case, Load, fixed, row, run_once
from headgate_lab.experiments.registry import Request
from headgate_lab.rivals.dabs import Dabs
from headgate_lab.rivals.regression import Regression

if TYPE_CHECKING:
    from headgate.report.plot import Figure

F64 = npt.NDArray[np.float64]

_PEAK = 8.0
_DAY_MINUTES = 1440
_BLEND = "blend"


@dataclass(frozen=True)
class _Log:
    """Describes a file with one count per minute, and the part of it that is used.

    Attributes
    ----------
    minutes : int
        Length of an interval.
    middle : int or None
        The minute in the middle of the run; None for the whole log.
    """

    name: str
    file: str
    column: str
    minutes: int
    middle: int | None = None

    def read(self, directory: Path) -> F64:
        """Return requests per interval."""
        path = directory / self.file
        if not path.is_file():
            msg = f'there is no "{self.file}" in "{directory}"; name the directory of the real traces.'
            raise ConfigError(msg)
        counts = read_totals(str(path), self.column, np.ones(1), np.random.default_rng(1)).counts
        whole = len(counts) // self.minutes * self.minutes
        totals: F64 = counts[:whole, 0].reshape(-1, self.minutes).sum(axis=1).astype(np.float64)
        return totals

    def forecasters(self, intervals: int) -> dict[str, Callable[[], Forecaster]]:
        """Return the forecasts to compare; seasonal ones where the log has three days at least."""
        period = _DAY_MINUTES // self.minutes
        seasonal = intervals >= 3 * period
        found: dict[str, Callable[[], Forecaster]] = {"naive": Naive, "regression": Regression}
        if seasonal:
            found["holt-winters"] = lambda: HoltWinters(period)
        found[_BLEND] = lambda: daily_blend(period if seasonal else None)
        return found


_LOGS = (
    _Log("worldcup98", "worldcup98.per_minute.csv.gz", "requests", 10, 110_172),
    _Log("sdsc", "web_logs_1995.per_minute.csv.gz", "sdsc_requests", 5),
    _Log("epa", "web_logs_1995.per_minute.csv.gz", "epa_requests", 5),
)


def run(request: Request) -> dict[str, Any]:
    """Return the error of each forecast, and the result of PSPS with it."""
    assert request.data is not None  # the registry asks for it
    return measure(request.data, days=1 if request.quick else 3)


def measure(directory: Path, *, days: int) -> dict[str, Any]:
    """Return the same, with a run of at most `days` of each log."""
    rows = []
    lower = {}
    for log in _LOGS:
        totals = log.read(directory)
        forecasters = log.forecasters(len(totals))
        errors = {name: mean_error(make(), totals) for name, make in forecasters.items()}
        lower[log.name] = round(1.0 - errors[_BLEND] / errors["naive"], 4)
        rows += _runs(log, totals, forecasters, errors, days * _DAY_MINUTES // log.minutes)
    return {
        "mode": "replicas",
        "seeds": [1],
        "paper": "none: its forecast is the last value",
        "reaches": {"error of the blend below the last value's, by": lower},
        "rows": rows,
    }


def mean_error(forecaster: Forecaster, values: F64) -> float:
    """Return the mean absolute error one interval ahead, from the second value on."""
    missed = []
    for value in values.tolist():
        with contextlib.suppress(NotReady):
            missed.append(abs(forecaster.forecast() - value))
        forecaster.observe(value)
    return float(np.mean(missed))


def _runs(
    log: _Log,
    totals: F64,
    forecasters: Mapping[str, Callable[[], Forecaster]],
    errors: Mapping[str, float],
    length: int,
) -> list[dict[str, Any]]:
    """Return a row for PSPS with each forecast, and one for each rival."""
    start = 0 if log.middle is None else max(log.middle // log.minutes - length // 2, 0)
    part = totals[start : start + length]
    scale = _PEAK / part.max()
    seconds = round(KEEPING.interval_s)
    needed = np.repeat(part * scale, seconds)
    load = Load(replicas_needed=lambda _: needed)
    per_interval = scale * seconds / load.application.event_s

    def informed(make: Callable[[], Forecaster]) -> Callable[[], Psps]:
        def policy() -> Psps:
            forecaster = make()
            for value in (totals[:start] * per_interval).tolist():
                forecaster.observe(value)
            return Psps(forecaster)

        return policy

    cases = [Case(f"PSPS, {name}", informed(make), KEEPING) for name, make in forecasters.items()]
    cases += [Case("DABS", Dabs, SHUFFLED), fixed(1), fixed(4), fixed(8)]
    found = []
    for case in cases:
        error = errors.get(case.system.removeprefix("PSPS, "))
        values = row(case, load, [run_once(case, load, 1)])
        found.append(
            {
                "trace": log.name,
                "system": values.pop("system"),
                "error": None if error is None else round(error / errors["naive"], 4),
                **{key: value for key, value in values.items() if not key.startswith("paper_")},
            }
        )
    return found


def draw(data: Mapping[str, Any]) -> Figure:
    """Return the error of each forecast, and degradation against what is saved, per trace."""
    traces = list(dict.fromkeys(each["trace"] for each in data["rows"]))
    figure, axes = panels(2, len(traces))
    for trace, errors, measures in zip(traces, axes, axes[len(traces) :], strict=False):
        rows = [each for each in data["rows"] if each["trace"] == trace]
        forecasts = [each for each in rows if each["error"] is not None]
        errors.bar([each["system"] for each in forecasts], [each["error"] for each in forecasts])
        errors.tick_params(axis="x", rotation=60, labelsize=6)
        errors.set(ylabel="error / the last value's", title=trace)
        for each in rows:
            measures.plot(each["saved"], each["degradation"], "o", label=each["system"])
        measures.set(xlabel="saved", ylabel="degradation", yscale="symlog")
        measures.legend(fontsize=6)
    return figure
