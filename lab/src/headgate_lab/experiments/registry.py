"""Finds figures by the names that ``headgate figure`` takes, such as ``streamswitch-5``."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from headgate.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from headgate.report.plot import Figure


@dataclass(frozen=True)
class Request:
    """Describes a request for a figure.

    Attributes
    ----------
    quick : bool
        Whether to reduce the length and the number of the runs.
    data : Path or None
        Directory of the files that a figure reads: the real traces, or runs on Spark.
    """

    quick: bool = False
    data: Path | None = None


class FigureModule(Protocol):
    """Defines the members of a figure's module."""

    def run(self, request: Request) -> dict[str, Any]:
        """Return the figure's numbers, ready for JSON.

        ``rows`` is a list of flat dicts, one per point; ``paper`` has the paper's numbers.
        """

    def draw(self, data: Mapping[str, Any]) -> Figure:
        """Return the picture of what `run` returned."""


@dataclass(frozen=True)
class Entry:
    """Describes an available figure.

    Attributes
    ----------
    module : str
        Below `headgate_lab.experiments`.
    reads : str
        Contents of the directory that it needs as `Request.data`; empty if it needs none.
    optional : bool
        Whether it can run without that directory.
    """

    module: str
    title: str
    reads: str = ""
    optional: bool = False


_FIGURES: Mapping[str, Entry] = {
    "streamswitch-5": Entry("streamswitch.fig05", "success against slots, four families"),
    "streamswitch-6": Entry("streamswitch.fig06", "four hours on Samza and Flink (6, 18)"),
    "streamswitch-7": Entry("streamswitch.fig07", "single decisions and what they move (7-9)"),
    "streamswitch-10": Entry("streamswitch.fig10", "alert threshold and interval (10, 11)"),
    "streamswitch-12": Entry("streamswitch.fig12", "slots of two speeds (12, 13)"),
    "streamswitch-14": Entry("streamswitch.fig14", "success and switching time (14, 15)"),
    "streamswitch-16": Entry("streamswitch.fig16", "an end-to-end bound, split over two operators"),
    "streamswitch-17": Entry("streamswitch.fig17", "figure 5 under longer bounds and windows"),
    "streamswitch-spark": Entry(
        "streamswitch.spark",
        "figures 5 and 6 on Spark, and predicted",
        reads="what bench slo keeps",
    ),
    "henge-1": Entry("henge.fig01", "utility against resources"),
    "henge-9": Entry("henge.fig09", "nine jobs by priority, ten with a hybrid SLO (9, 10)"),
    "henge-11": Entry("henge.fig11", "two spikes of the input"),
    "henge-12": Entry("henge.fig12", "two days of web servers' loads", reads="the real traces"),
    "henge-13": Entry("henge.fig13", "production jobs on a cluster too small; a reversion"),
    "henge-14": Entry("henge.fig14", "other processes take the cores; a reduction"),
    "henge-15": Entry("henge.fig15", "twenty more jobs every two hours"),
    "henge-16": Entry("henge.fig16", "forty jobs on ten to forty machines"),
    "henge-17": Entry("henge.fig17", "statistics cut off"),
    "henge-18": Entry("henge.fig18", "joins that keep records"),
    "henge-table-4": Entry("henge.table4", "stateful and stateless word counts"),
    "henge-rivals": Entry("henge.rivals", "beside equal shares and first come, first served"),
    "henge-parameters": Entry("henge.parameters", "the five parameters"),
    "henge-rounds": Entry("henge.rounds", "what a round of a hundred jobs costs"),
    "drrs-2": Entry("drrs.fig02", "on-the-fly scaling, and what bounds it"),
    "drrs-10": Entry("drrs.fig10", "latency while scaling: DRRS, Megaphone, Meces"),
    "drrs-11": Entry("drrs.fig11", "throughput while scaling"),
    "drrs-12": Entry("drrs.fig12", "propagation delay and dependency overhead"),
    "drrs-13": Entry("drrs.fig13", "suspension while scaling"),
    "drrs-14": Entry("drrs.fig14", "each mechanism of DRRS alone"),
    "drrs-15": Entry("drrs.fig15", "input rate, size of state and skew"),
    "psps-table-2": Entry("psps.table02", "three operators in a row: events and replicas"),
    "psps-table-4": Entry("psps.table04", "the length of an interval"),
    "psps-table-5": Entry("psps.table05", "the age at which an event is dropped"),
    "psps-table-6": Entry("psps.table06", "how many events may wait"),
    "psps-table-7": Entry("psps.table07", "load-aware grouping against shuffle"),
    "psps-table-8": Entry("psps.table08", "fixed numbers of replicas (figures 8, 9)"),
    "psps-table-9": Entry("psps.table09", "tweets that were not smoothed"),
    "psps-table-10": Entry("psps.table10", "DABS, which restarts (figures 10, 11)"),
    "psps-table-11": Entry("psps.table11", "eight operators with a split"),
    "psps-table-12": Entry("psps.table12", "DNS traffic (figure 14)"),
    "psps-forecast": Entry(
        "psps.forecast", "forecasts of the input of two web servers", reads="the real traces"
    ),
    "stretch-6": Entry("stretch.fig06", "words and pairs, shared against partitioned (measured)"),
    "stretch-7": Entry("stretch.fig07", "what sharing and ordering alone can do (measured)"),
    "stretch-8": Entry("stretch.fig08", "ScaleJoin as an O+ (measured)"),
    "stretch-9": Entry("stretch.fig09", "reconfiguration times, and what is copied (measured)"),
    "stretch-10": Entry("stretch.fig10", "one reconfiguration up and down, and table 4"),
    "stretch-11": Entry("stretch.fig11", "twenty minutes of random phases (11, 12, 16-19)"),
    "stretch-13": Entry("stretch.fig13", "a day of trades, joined with itself"),
    "unified": Entry(
        "unified.table",
        "the unified policy beside each paper's own",
        reads="the real traces",
        optional=True,
    ),
    "fleet-loads": Entry(
        "unified.six",
        "six jobs whose loads change, at eleven budgets",
        reads="the real traces",
        optional=True,
    ),
    "guesses": Entry("guesses", "what hangs on parameters that were changed after a first look"),
    "traces": Entry(
        "traces", "every policy on two real traces of requests", reads="the real traces"
    ),
}

_SHOWN_WITH: Mapping[str, str] = {
    "henge-10": "henge-9",
    "henge-table-3": "henge-13",
    "stretch-12": "stretch-11",
    "stretch-16": "stretch-11",
    "stretch-17": "stretch-11",
    "stretch-18": "stretch-11",
    "stretch-19": "stretch-11",
    "psps-8": "psps-table-8",
    "psps-9": "psps-table-8",
    "psps-10": "psps-table-10",
    "psps-11": "psps-table-10",
    "psps-14": "psps-table-12",
    "streamswitch-8": "streamswitch-7",
    "streamswitch-9": "streamswitch-7",
    "streamswitch-11": "streamswitch-10",
    "streamswitch-13": "streamswitch-12",
    "streamswitch-15": "streamswitch-14",
    "streamswitch-18": "streamswitch-6",
}
"""Figures of a paper that another figure's runs show as well."""


def entries() -> Mapping[str, Entry]:
    """Return the figures by name."""
    return _FIGURES


def load(name: str) -> FigureModule:
    """Return the module of a figure.

    Raises
    ------
    ConfigError
        No figure has that name.
    """
    entry = _get(name)[1]
    return cast(FigureModule, importlib.import_module(f"headgate_lab.experiments.{entry.module}"))


def run(name: str, request: Request) -> dict[str, Any]:
    """Run a figure's simulations and return its numbers, with its name and the seconds it took.

    Raises
    ------
    ConfigError
        No figure has that name, or it needs the directory of the traces, or does not.
    """
    name, entry = _get(name)
    given = request.data is not None
    if (given and not entry.reads) or (entry.reads and not given and not entry.optional):
        remedy = "name its directory with --data" if entry.reads else "leave out --data"
        msg = f"figure {name} reads {entry.reads or 'no files'}; {remedy}."
        raise ConfigError(msg)
    start_s = time.perf_counter()
    found = load(name).run(request)
    took_s = round(time.perf_counter() - start_s, 1)
    return {"figure": name, "title": entry.title, "quick": request.quick, **found, "took_s": took_s}


def _get(name: str) -> tuple[str, Entry]:
    known = _SHOWN_WITH.get(name, name)
    if known not in _FIGURES:
        hint = nearest(name, _FIGURES) or f"; known: {', '.join(_FIGURES)}."
        msg = f'unknown figure "{name}"{hint}'
        raise ConfigError(msg)
    return known, _FIGURES[known]
