"""Draws the pictures that several figures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headgate.report.plot import panels

if TYPE_CHECKING:
    from headgate.report.plot import Figure

Series = Mapping[str, Sequence[float | None]]
"""Method -> one value per second from the request."""


def over_time(by_workload: Mapping[str, Series], label: str, *, log: bool = False) -> Figure:
    """Return one panel per workload with a line per method.

    Parameters
    ----------
    label : str
        Of the vertical axis.
    log : bool
        Whether that axis is logarithmic.
    """
    figure, axes = panels(1, len(by_workload))
    for axis, (name, series) in zip(axes, by_workload.items(), strict=True):
        for method, values in series.items():
            known = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
            axis.plot(np.arange(len(known)), known, label=method, linewidth=0.8)
        axis.set(xlabel="seconds from the request", ylabel=label, title=name)
        if log:
            axis.set_yscale("log")
        axis.legend()
    return figure


def latency_over_time(by_workload: Mapping[str, Series]) -> Figure:
    """Return the greatest marker latency of each second."""
    return over_time(by_workload, "greatest latency, s", log=True)
