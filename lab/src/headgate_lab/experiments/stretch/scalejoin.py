"""Runs part `scalejoin` of ``bench operators``: comparisons per second, all pairs and band index.

Records as in STRETCH 8.3: two attributes uniform in [1, 10000], a match within 10 of both. Compared
are the slots of ScaleJoin as an O+ (processes on one buffer and one state), the kernels alone in one
thread (*1T*), and the per-record reference. A band index compares few pairs but decides about all of
them: its comparisons are *effective*.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from headgate.operators.join.match import Pairs
from headgate.operators.operator_plus import Record
from headgate_lab.bench.common import WrongAnswer, parameters, progress, require
from headgate_lab.experiments.stretch import fig08
from headgate_lab.experiments.stretch.live import LiveJoin
from headgate_lab.oplus.band import Band, BandIndex, Records, compare_all
from headgate_lab.oplus.library import scale_join
from headgate_lab.oplus.reference import run as reference

T = TypeVar("T")

TARGETS: Mapping[str, float] = {"every pair": 5e8, "band index": 1e10}
"""Comparisons/s per core, at least; design, figures to reach."""

_WIDTH = 10
_VALUES = 10_000
_PROBES = 4_000
"""Records that are compared with all stored ones: half a second of the paper's 8,000 a second."""

_REFERENCE = 400
_REFERENCE_VALUES = 200
"""Records of each side of the per-record reference, which is slow, and how far they spread: so that
some hundreds of pairs match."""


@dataclass(frozen=True)
class ScaleJoinParameters:
    """Holds the parameters of `run`."""

    seconds: float = 2.0
    """How long each number of slots is measured."""

    window_s: float = 60.0
    """WS of the slots' join, at 2,000 records per second."""

    stored: int = 300_000
    """Records that each probe record meets; 4,000 a second and 5 minutes are 600,000 of a side."""

    slots_max: int = 2
    """Slots are 1, 2, 4 ... up to this."""

    seed: int = 0
    """Of the records."""

    def __post_init__(self) -> None:
        require(min(self.seconds, self.window_s) > 0, "seconds and window_s must be > 0")
        require(min(self.stored, self.slots_max) >= 1, "stored and slots_max must be >= 1")


def run(**given: Any) -> dict[str, Any]:
    """Return comparisons per second of each form, per core, beside the targets.

    Parameters
    ----------
    **given
        Fields of `ScaleJoinParameters`.

    Raises
    ------
    ConfigError    A parameter is unknown or out of range.
    WrongAnswer    Two forms do not find the same pairs.
    """
    asked = parameters(ScaleJoinParameters, given)
    cores = os.cpu_count() or 1
    rows = [*_one_thread(asked), _reference(asked.seed)]
    for slots in (1 << bit for bit in range(asked.slots_max.bit_length())):
        join = LiveJoin(slots, slots, 2_000.0, asked.window_s, paced=False)
        rows.append(
            _row("every pair, O+", slots, min(slots, cores), fig08.throughput(join, asked.seconds))
        )
    for row in rows:
        progress(f"{row['form']}, {row['slots']} slots: {row['comparisons_per_s']:.3g} a second")
    return {
        "benchmark": "scalejoin",
        "parameters": asdict(asked),
        "rows": rows,
        "ratios": ratios(rows),
    }


def _row(form: str, slots: int, cores: int, per_s: float) -> dict[str, Any]:
    return {
        "form": form,
        "slots": slots,
        "comparisons_per_s": per_s,
        "comparisons_per_s_per_core": per_s / cores,
    }


def _one_thread(asked: ScaleJoinParameters) -> list[dict[str, Any]]:
    """Return both kernels on the same records; the index's time includes building it."""
    stored, probe = _records(asked.stored, asked.seed), _records(_PROBES, asked.seed + 1)
    band = Band(_WIDTH, _WIDTH, asked.stored)
    warm = _records(10, 0)
    compare_all(warm, warm, band), BandIndex(warm).look_up(warm, band)
    every_s, every = _timed(lambda: compare_all(probe, stored, band))
    made_s, index = _timed(lambda: BandIndex(stored))
    looked_s, found = _timed(lambda: index.look_up(probe, band))
    _same("the band index", found, every)
    pairs = asked.stored * _PROBES
    return [
        _row("every pair, 1T", 1, 1, pairs / every_s),
        _row("band index, 1T", 1, 1, pairs / looked_s),
        _row("band index made for each step, 1T", 1, 1, pairs / (made_s + looked_s)),
    ]


def _reference(seed: int) -> dict[str, Any]:
    """Return the per-record reference, whose pairs the kernel must find, too."""
    left, right = (_records(_REFERENCE, seed + n, _REFERENCE_VALUES) for n in (0, 1))
    reach = 2 * _REFERENCE

    def near(a: Record, b: Record) -> bool:
        return all(abs(x - y) <= _WIDTH for x, y in zip(a.payload[1:], b.payload[1:], strict=True))

    records = [
        Record(int(side.times[at]), (at, float(side.first[at]), float(side.second[at])), number)
        for at in range(_REFERENCE)
        for number, side in enumerate((left, right))
    ]
    took_s, emitted = _timed(lambda: reference(scale_join(reach, 5, near), records))
    pairs = sorted((out.payload[0][0], out.payload[1][0]) for out in emitted)
    probes, found = compare_all(left, right, Band(_WIDTH, _WIDTH, reach))
    if pairs != sorted(zip(probes.tolist(), found.tolist(), strict=True)):
        msg = f"the kernel found {probes.size} pairs, the reference {len(pairs)}."
        raise WrongAnswer(msg)
    return _row("reference, record by record", 1, 1, _REFERENCE**2 / took_s)


def _records(count: int, seed: int, values: int = _VALUES) -> Records:
    """Return records of one side, one per unit of time.

    The second attribute is in quarters, which a float of four bytes has exactly.
    """
    generator = np.random.default_rng([seed, count])
    return Records(
        np.arange(count, dtype=np.int64),
        generator.integers(1, values + 1, count).astype(np.int32),
        (generator.integers(4, 4 * values + 1, count) / 4).astype(np.float32),
    )


def _same(who: str, found: Pairs, right: Pairs) -> None:
    if not all(np.array_equal(a, b) for a, b in zip(found, right, strict=True)):
        msg = f"{who} found {found[0].size} pairs, comparing all finds {right[0].size} or others."
        raise WrongAnswer(msg)


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    begun_s = time.perf_counter()
    result = work()
    return time.perf_counter() - begun_s, result


def ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each form's comparisons per second and core over every pair's in one thread.

    Beside them is the target, which is a rate and not a ratio: ``target_per_s``.
    """
    (alone,) = (row for row in rows if row["form"] == "every pair, 1T")
    found = []
    for row in rows:
        per_s = row["comparisons_per_s_per_core"]
        target = next((t for form, t in TARGETS.items() if row["form"].startswith(form)), None)
        found.append(
            {
                "form": row["form"],
                "slots": row["slots"],
                "ratio": per_s / alone["comparisons_per_s_per_core"],
                "target_per_s": target,
                "met": None if target is None else per_s >= target,
            }
        )
    return found
