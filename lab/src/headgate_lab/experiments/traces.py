"""Runs every policy on the rates of two real web servers: World Cup 1998 and SDSC 1995.

This is no paper's figure; it uses loads that this project did not make. A minute of the log lasts a few
seconds, so that the load changes faster than it did; rates are scaled so that the median needs two
slots. The files contain no keys, which are Zipf-distributed [I].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.control.registry import names
from headgate.core.errors import ConfigError
from headgate.core.installed import POLICIES, installed
from headgate.core.slo import parse_slo
from headgate.report.plot import panels
from headgate.whatif.simulate import WhatIf, simulate
from headgate.workloads.traces import Trace, read_totals
from headgate_demo.generators.draws import zipf_shares
from headgate_lab.experiments.registry import Request
from headgate_lab.workloads.arrivals import group_shares

if TYPE_CHECKING:
    from headgate.report.plot import Figure

SLO = "mean < 1 s over 1 s"
SERVICE_RATE_PER_S = 160.0
MEDIAN_SLOTS = 2.0
_MARGIN = 0.8
_KEY_GROUPS = 64
_KEYS = 1000
_ZIPF = 0.8
_STATIC = ("static(2)", "static(4)", "static(8)", "static(16)")


@dataclass(frozen=True)
class _Log:
    """Describes a file with one count per minute and the part of it that is used.

    Attributes
    ----------
    middle : int or None
        The minute in the middle of the part; None for the whole file.
    """

    name: str
    file: str
    column: str
    middle: int | None


_LOGS = (
    _Log("worldcup98", "worldcup98.per_minute.csv.gz", "requests", 110_172),
    _Log("sdsc", "web_logs_1995.per_minute.csv.gz", "sdsc_requests", None),
)
"""The World Cup's part lies around its steepest rise: +171 % within five minutes."""


def run(request: Request) -> dict[str, Any]:
    """Return success and slots of every policy on both traces."""
    assert request.data is not None  # the registry asks for it
    if request.quick:
        return measure(request.data, minutes=720, minute_s=1.0)
    return measure(request.data, minutes=7 * 1440, minute_s=3.0)


def measure(directory: Path, *, minutes: int, minute_s: float) -> dict[str, Any]:
    """Return the same of at most `minutes` of each log, each of which lasts `minute_s`."""
    policies = [text for text in (*names(), *installed(POLICIES)) if text != "static"]
    policies += _STATIC
    traces: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for log in _LOGS:
        trace, scale = _scaled(directory, log, minutes, minute_s)
        what_if = WhatIf(trace, parse_slo(SLO), SERVICE_RATE_PER_S)
        found = simulate(what_if, policies)
        rows += [{"trace": log.name, **row} for row in found.pop("rows")]
        traces[log.name] = {"rate_factor": round(scale, 4), **found}
    return {
        "mode": "continuous",
        "seed": 1,
        "speed": 60.0 / minute_s,
        "service_rate_per_s": SERVICE_RATE_PER_S,
        "slo": SLO,
        "rate_factors": {name: found["rate_factor"] for name, found in traces.items()},
        "paper": "none",
        "traces": traces,
        "rows": rows,
    }


def _scaled(directory: Path, log: _Log, minutes: int, minute_s: float) -> tuple[Trace, float]:
    """Return the part of a log with its rates scaled, and the factor."""
    path = directory / log.file
    if not path.is_file():
        msg = f'there is no "{log.file}" in "{directory}"; name the directory of the real traces.'
        raise ConfigError(msg)
    generator = np.random.default_rng(1)
    totals = read_totals(str(path), log.column, np.ones(1), generator).counts[:, 0]
    median = float(np.median(totals)) / minute_s
    scale = MEDIAN_SLOTS * _MARGIN * SERVICE_RATE_PER_S / median
    start = 0 if log.middle is None else max(log.middle - minutes // 2, 0)
    part = np.rint(totals[start : start + minutes] * scale).astype(np.int64)
    shares = group_shares(zipf_shares(_KEYS, _ZIPF), _KEY_GROUPS)
    return Trace(generator.multinomial(part, shares).astype(np.int32), minute_s), scale


def draw(data: Mapping[str, Any]) -> Figure:
    """Return success against slots, one panel per trace."""
    figure, axes = panels(1, len(data["traces"]))
    for panel, name in zip(axes, data["traces"], strict=True):
        for row in data["rows"]:
            if row["trace"] == name:
                panel.plot(row["slots_mean"], row["success"], "o", label=row["policy"])
        panel.set(xlabel="slots, time average", ylabel="success", title=name)
        panel.legend()
    return figure
