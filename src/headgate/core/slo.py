"""Parses and holds service-level objectives: the latency or rate that a job must achieve."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from headgate.core.duration import LONGEST_S, parse_duration_s
from headgate.core.errors import ConfigError, nearest
from headgate.core.input import RATE_MAX, shown

LATENCIES = ("mean", "p50", "p90", "p95", "p99", "p99.9", "max")
"""Statistics with an upper bound, in seconds."""
RATES = ("juice", "throughput")
"""Statistics with a lower bound: a share, and records per second."""

EACH_OPERATOR = "each operator"
END_TO_END = "end-to-end"
_OPERATOR = "operator "

SUCCESS = 0.99
"""Default share of windows within the bound; larger needs more slots. Below 1 to limit the cost."""
ALERT_S = 0.1
"""Default alert threshold l, in seconds: StreamSwitch 6."""
_RATE_WINDOW_S = 60.0
_WINDOW_MIN_S = 1e-6
"""Shortest window, in seconds: the smallest unit of a duration."""

_EXAMPLE = 'write "mean < 1 s over 1 s" or "juice >= 0.95 over 1 min"'
_CHARACTERS = 300
_SCOPED = re.compile(r"\s*(?:(end-to-end|operator\s[^:]*?)\s*:)?\s*(.*?)\s*", re.DOTALL | re.I)
_CLAUSE = re.compile(
    r"(?:(?P<statistic>[\w.]+)\s*(?P<sign><=?|>=?))?\s*(?P<bound>[^<>=]+?)"
    r"(?:\s+over\s+(?P<window>[^<>=]+?))?"
    r"(?:\s+in\s+(?P<percent>[^<>=]+?)\s*of\s+windows)?",
    re.DOTALL | re.I,
)
_NUMBER = re.compile(r"\d+(?:\.\d*)?|\.\d+")
_RATE = re.compile(r"([\d.]+)\s*(?:records|rows)?\s*/\s*([a-z]+)", re.I)


@dataclass(frozen=True)
class Slo:
    """Holds one objective: a bound on a statistic over every window of some length.

    Attributes
    ----------
    statistic : str
        One of `LATENCIES` or `RATES`.
    bound : float
        The largest allowed latency, in seconds; or the least juice, a share in (0, 1]; or the least
        throughput, in records per second.
    window_s : float
        T: length of the sliding window, in seconds.
    scope : str
        `EACH_OPERATOR` (every key group at every operator by itself), `END_TO_END`, or
        ``operator NAME``; empty for the usual scope: each operator for a mean, else end-to-end.
    success : float
        Share of windows in which the bound must hold, in (0, 1].
    alert_s : float
        l: latency above which a slot is watched, in seconds, below `bound`; 0 for `ALERT_S`, or
        half the bound where that is less. Unused for `RATES`.

    Raises
    ------
    ConfigError
        A value is unknown or out of range, or the alert threshold is not below the bound.
    """

    statistic: str
    bound: float
    window_s: float
    scope: str = ""
    success: float = SUCCESS
    alert_s: float = 0.0

    def __post_init__(self) -> None:
        if self.statistic not in LATENCIES + RATES:
            msg = f'unknown statistic "{self.statistic}"{_known(self.statistic)}'
            raise ConfigError(msg)
        if not self.scope:
            object.__setattr__(self, "scope", _usual_scope(self.statistic))
        if self.is_latency and self.alert_s == 0.0:
            object.__setattr__(self, "alert_s", min(ALERT_S, self.bound / 2))
        self._check()

    def _check(self) -> None:
        """Raise ConfigError where a value is out of range."""
        name = self.statistic
        most = 1.0 if name == "juice" else LONGEST_S if self.is_latency else RATE_MAX
        if not 0.0 < self.bound <= most:
            high = f" and at most {most:g}"
            msg = f"the bound {self.bound:g} on {name} is out of range; use more than 0{high}."
        elif not _WINDOW_MIN_S <= self.window_s <= LONGEST_S:
            msg = f"window_s={self.window_s:g} is out of range; use 1 us to 100 years."
        elif not 0.0 < self.success <= 1.0:
            msg = f"success={self.success:g} is out of range; use a share above 0, at most 1."
        elif self.is_latency and not 0.0 < self.alert_s < self.bound:
            msg = (
                f"the alert threshold {_duration(self.alert_s)} is not below the bound "
                f"{_duration(self.bound)}; use less than {_duration(self.bound)}."
            )
        elif not self._scope_fits():
            msg = f'scope "{self.scope}" does not fit {name}; use "{_usual_scope(name)}"' + (
                f' or "{_OPERATOR}NAME".' if self.is_latency else "."
            )
        else:
            return
        raise ConfigError(msg)

    def _scope_fits(self) -> bool:
        name = self.operator or ""
        named = bool(name) and ":" not in name and name == " ".join(name.split())
        if not self.is_latency:
            return self.scope == END_TO_END
        return named or self.scope == END_TO_END or self.scope == _usual_scope(self.statistic)

    @property
    def is_latency(self) -> bool:
        """Return whether `bound` is an upper bound in seconds."""
        return self.statistic in LATENCIES

    @property
    def quantile(self) -> float:
        """The share of records within a percentile: 0.95 for ``p95``, 1 for ``max``."""
        assert self.is_latency
        assert self.statistic != "mean"
        return 1.0 if self.statistic == "max" else float(self.statistic.removeprefix("p")) / 100.0

    @property
    def operator(self) -> str | None:
        """The operator that the scope names; None for another scope."""
        return self.scope.removeprefix(_OPERATOR) if self.scope.startswith(_OPERATOR) else None

    def __str__(self) -> str:
        """Return the canonical text, without `alert_s`; `parse_slo` reads the text back."""
        scope = "" if self.scope == _usual_scope(self.statistic) else f"{self.scope}: "
        if self.is_latency:
            what = f"{self.statistic} < {_duration(self.bound)}"
        elif self.statistic == "juice":
            what = f"juice >= {_plain(self.bound)}"
        else:
            what = f"throughput >= {_plain(self.bound)} records/s"
        share = "" if self.success == SUCCESS else f" in {_percent(self.success)} of windows"
        return f"{scope}{what} over {_duration(self.window_s)}{share}"


def parse_slo(text: str) -> Slo:
    """Return the objective that `text` states.

    `text`: ``[end-to-end:|operator NAME:] STATISTIC < DURATION over DURATION [in PERCENT of
    windows]`` with a statistic of `LATENCIES`; ``juice >= RATIO [over DURATION]``; ``throughput >=
    RATE [over DURATION]`` with a rate such as ``500 records/s``. ``1s over 1s`` is short for ``mean
    < 1 s over 1 s``. Units are required; ``<=`` means ``<`` and ``>`` means ``>=``. Raises
    `ConfigError`: `text` has another form, lacks a unit or a window, or a value is out of range; the
    message quotes `text` and proposes a correct text.
    """
    scoped = _SCOPED.fullmatch(text) if len(text) <= _CHARACTERS else None
    clause = _CLAUSE.fullmatch(scoped[2]) if scoped else None
    if scoped is None or clause is None or not (clause["sign"] or clause["window"]):
        msg = f'cannot read SLO "{shown(text, 80)}"; {_EXAMPLE}.'
        raise ConfigError(msg)
    statistic = (clause["statistic"] or "mean").lower()
    if statistic not in LATENCIES + RATES:
        msg = f'SLO "{text}" has the unknown statistic "{clause["statistic"]}"{_known(statistic)}'
        raise ConfigError(msg)
    below = statistic in LATENCIES
    sign = clause["sign"] or "<"
    if sign.startswith("<") != below:
        fixed = text.replace(sign, "<" if below else ">=")
        msg = f'SLO "{text}" bounds {statistic} from the wrong side; write "{fixed}".'
        raise ConfigError(msg)
    if below and clause["window"] is None:
        bound = clause["bound"]
        unit = f" {_unit_of(bound)}" if _NUMBER.fullmatch(bound) else ""
        msg = f'SLO "{text}" has no window; write "{text.strip()}{unit} over 10 s".'
        raise ConfigError(msg)
    start = scoped.start(2)
    window_s = _RATE_WINDOW_S
    if clause["window"] is not None:
        window_s = _seconds(text, start + clause.start("window"), clause["window"], "s")
    bound = _bound(text, start + clause.start("bound"), statistic, clause["bound"])
    scope = " ".join(scoped[1].split()) if scoped[1] else ""
    success = SUCCESS if clause["percent"] is None else _share(text, clause["percent"])
    if success > 1.0 and (percent := clause["percent"]).isdecimal():
        start += clause.start("percent")
        fixed = f"{text[:start]}{percent} %{text[start + len(percent) :]}"
        msg = f'SLO "{text}" wants {percent} times all windows; write "{fixed}".'
        raise ConfigError(msg)
    try:
        return Slo(statistic, bound, window_s, scope, success)
    except ConfigError as error:
        msg = f'SLO "{text}": {error}'
        raise ConfigError(msg) from error


def _bound(text: str, start: int, statistic: str, bound: str) -> float:
    """Return the value of the bound at `start` in `text`, in the unit of its statistic."""
    number = _NUMBER.match(bound)
    if statistic in LATENCIES:
        return _seconds(text, start, bound, _unit_of(number[0] if number else "0"))
    if statistic == "juice":
        return _share(text, bound)
    rate = _RATE.fullmatch(bound)
    if rate is None:
        fixed = f"throughput >= {number[0] if number else 500} records/s"
        msg = f'SLO "{text}" has no rate at "{bound}"; write "{fixed}".'
        raise ConfigError(msg)
    return _number(text, rate[1]) / _seconds(text, start, f"1 {rate[2]}", "s")


def _unit_of(number: str) -> str:
    """Return the likely unit of a bare number: milliseconds from 10 on, else seconds. Chosen."""
    return "ms" if float(number) >= 10.0 else "s"  # noqa: PLR2004


def _seconds(text: str, start: int, duration: str, unit: str) -> float:
    """Return the seconds of the duration at `start` in `text`; a message may propose `unit`."""
    if _NUMBER.fullmatch(duration):
        end = start + len(duration)
        fixed = f"{text[:end]} {unit}{text[end:]}"
        msg = f'SLO "{text}" has no unit at "{duration}"; write "{fixed}".'
        raise ConfigError(msg)
    try:
        return parse_duration_s(duration)
    except ConfigError as error:
        msg = f'SLO "{text}": {error}'
        raise ConfigError(msg) from error


def _share(text: str, share: str) -> float:
    """Return a share, written as ``0.95`` or ``95 %``."""
    percent = share.endswith("%")
    return _number(text, share.removesuffix("%")) / (100.0 if percent else 1.0)


def _number(text: str, number: str) -> float:
    if not _NUMBER.fullmatch(number.strip()):
        msg = f'SLO "{text}" has no number at "{number.strip()}"; {_EXAMPLE}.'
        raise ConfigError(msg)
    return float(number)


def _usual_scope(statistic: str) -> str:
    return EACH_OPERATOR if statistic == "mean" else END_TO_END


def _known(statistic: str) -> str:
    """Return the end of a sentence about an unknown statistic: known or similar ones."""
    known = LATENCIES + RATES
    return nearest(statistic, known) or f"; use {', '.join(known)}."


def _duration(seconds: float) -> str:
    """Return a text that `parse_duration_s` reads back as `seconds`: 90 s, 1.5 s, 800 ms."""
    units = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
    whole = [(f"{seconds / length:.0f} {unit}", seconds / length) for unit, length in units[:3]]
    decimal = [
        (f"{_plain(round(seconds / length, 9))} {unit}", seconds / length)
        for unit, length in units[2:]
    ]
    for text, count in whole + decimal:
        if count >= 1.0 and parse_duration_s(text) == seconds:
            return text
    return f"{_plain(seconds)} s"


def _percent(share: float) -> str:
    """Return a text that reads back as `share`: ``95 %``, or the share itself if that is not exact."""
    percent = _plain(round(share * 100, 9))
    return f"{percent} %" if float(percent) / 100.0 == share else _plain(share)


def _plain(number: float) -> str:
    """Return the shortest decimal that reads back as `number`, without an exponent."""
    return str(np.format_float_positional(number, trim="-"))
