"""Reads a run on Spark from its journal: the arrivals and their times."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.core.duration import LONGEST_S
from headgate.core.errors import ConfigError
from headgate.core.input import KEY_GROUPS_MAX, RATE_MAX, shown
from headgate.journal import read
from headgate.journal.parts import SlotStats
from headgate.journal.schema import Batch, Decided, Start
from headgate.scenario.places import journal_at, written
from headgate.workloads.traces import Trace

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

SLICE_S = 0.1
"""Resolution of the recorded arrivals, in s: the tick of the control loop."""

_BACKLOG_S = 60.0
"""Largest assumed age of a record at the start of the first batch, in s. Chosen, not tuned."""

_BATCHES_MIN = 40
"""Fewest batches for a replay: with fewer, costs are mostly noise. Chosen, not tuned."""

AT_ONCE = 8_000_000
"""Most records of one key group in one batch; and about the records per piece of `Recorded.records`."""

_RECORDS_MAX = 1_000_000_000
"""Most records of a replay."""

_CELLS_MAX = 1 << 28
"""Slices times key groups that fit into memory; a day of 128 key groups has 110 million."""

_SETTINGS: Mapping[str, tuple[tuple[type, ...], float, float]] = {
    "policy": ((str,), 0, 0),
    "slo": ((list, tuple), 0, 0),
    "slots_max": ((int,), 1, KEY_GROUPS_MAX),
    "slots_min": ((int,), 1, KEY_GROUPS_MAX),
    "cores": ((int,), 1, 10**6),
    "machine_cores": ((int,), 1, 10**6),
    "budget_s": ((int, float), 1e-6, LONGEST_S),
    "slot_rate": ((int, float), 1e-6, RATE_MAX),
    "floor_s": ((int, float), 0, LONGEST_S),
}
"""Types, least and largest value of the settings that a replay reads."""


@dataclass(frozen=True)
class Recorded:
    """Holds the last start of a query, up to the end of its journal."""

    start: Start
    batches: tuple[Batch, ...]
    """Oldest first; at least two."""
    changes: dict[str, int]
    """Number of changes that the policy decided during the run, by kind."""

    @classmethod
    def read(cls, checkpoint: str | os.PathLike[str], since_s: float | None = None) -> Recorded:
        """Return the recorded run of a checkpoint.

        `checkpoint` (path): or a journal. `since_s`: leaves out batches that ended longer before the
        last batch, in s. Raises `CheckpointError`: there is no journal, or it is damaged;
        `ConfigError`: the journal lacks what a replay needs.
        """
        start: Start | None = None
        batches: list[Batch] = []
        decided: list[Decided] = []
        for event in read(journal_at(checkpoint)):
            if isinstance(event, Start):
                start, batches, decided = event, [], []
            elif isinstance(event, Batch):
                batches.append(event)
            elif isinstance(event, Decided) and event.acts:
                decided.append(event)
        if start is None:
            msg = f"the journal of {written(checkpoint)} is empty; replay a query that has run."
            raise ConfigError(msg)
        if since_s is not None and batches:
            from_ms = batches[-1].at_ms - since_s * 1e3
            batches = [b for b in batches if b.at_ms >= from_ms]
            decided = [d for d in decided if d.at_ms >= from_ms]
        changes = Counter(wish.kind for d in decided for wish in d.wishes)
        recording = cls(start, tuple(batches), dict(sorted(changes.items())))
        recording._check(written(checkpoint))
        return recording

    def _check(self, where: str) -> None:
        operators = {a.operator for b in self.batches for a in b.arrivals}
        if len(self.batches) < _BATCHES_MIN:
            msg = (
                f"the journal of {where} has {len(self.batches)} batches in the time asked for; "
                f"replay {_BATCHES_MIN} or more."
            )
        elif not operators:
            msg = (
                f"the journal of {where} does not say what arrived by key group; replay a query that "
                "ran with an SLO (or .advise()) under this version."
            )
        elif len(operators) > 1:
            msg = (
                f"the journal of {where} is of {len(operators)} operators that read a source; "
                "replay a query with one."
            )
        elif len(stateful := {o for b in self.batches if b.slo for o in b.slo.by_operator}) > 1:
            msg = (
                f"the journal of {where} is of {len(stateful)} stateful operators, one behind the "
                "other; replay a query with one."
            )
        elif not {"policy", "slots_max"} <= set(self.parameters):
            msg = (
                f"the journal of {where} does not name policy and slots_max; it cannot be replayed."
            )
        elif problem := self._damage():
            msg = f"the journal of {where} makes no sense: {problem}; it cannot be replayed."
        else:
            return
        raise ConfigError(msg)

    def _damage(self) -> str:
        """Return the journal's content that no query can have written, or is too large; else ``""``."""
        groups = self.start.key_groups
        for batch in self.batches:
            if odd := _odd(batch, groups):
                return f"step {batch.step} {odd}"
        total = sum(sum(arrived.records) for b in self.batches for arrived in b.arrivals)
        if not any(batch.served for batch in self.batches[:-1]):
            return "no record was served"
        if not 1 <= total <= _RECORDS_MAX:
            return f"{total:,} records arrived, not 1 to {_RECORDS_MAX:,}"
        span_s = float(self.began_s[-1]) - self.first_s
        if not 0.0 < span_s * groups / SLICE_S <= _CELLS_MAX:
            return f"it spans {span_s:,.0f} s; name a part with --since"
        return self._settings_damage()

    def _settings_damage(self) -> str:
        for name, (kinds, low, high) in _SETTINGS.items():
            value = self.parameters.get(name)
            if value is None:
                continue
            right = isinstance(value, kinds) and not isinstance(value, bool)
            if not right or (isinstance(value, int | float) and not low <= value <= high):
                return f"its setting {name} is {shown(repr(value), 60)}"
        if not all(isinstance(text, str) for text in self.parameters.get("slo") or ()):
            return "its SLO is no text"
        return ""

    @property
    def parameters(self) -> dict[str, Any]:
        """Settings of the run, as the start event has them."""
        return self.start.parameters

    @property
    def began_s(self) -> F64:
        """Return the beginning of each batch, in s since 1970; never decreases."""
        began_s: F64 = np.maximum.accumulate(
            [(b.at_ms - b.duration_ms) / 1e3 for b in self.batches]
        )
        return began_s

    @property
    def operator(self) -> str:
        """The operator that is replayed."""
        return next(a.operator for b in self.batches for a in b.arrivals)

    @property
    def slots_mean(self) -> float:
        """Time-average of the slots."""
        span_s = np.diff(self.began_s)
        slots = [b.slots for b in self.batches[:-1]]
        return float(np.average(slots, weights=span_s)) if span_s.any() else float(slots[0])

    @property
    def latency_mean_ms(self) -> float | None:
        """Mean latency of the records served, in ms; None without a served record."""
        known = [(b.latency_ms.mean, b.served) for b in self.batches if b.latency_ms and b.served]
        if not known:
            return None
        mean_ms, served = zip(*known, strict=True)
        return round(float(np.average(mean_ms, weights=served)), 1)

    @property
    def first_s(self) -> float:
        """Return the time at which the first record can have arrived, in seconds since 1970."""
        oldest_ms = max((b.latency_ms.max for b in self.batches[:2] if b.latency_ms), default=0.0)
        return float(self.began_s[0]) - min(oldest_ms / 1e3, _BACKLOG_S)

    def trace(self) -> Trace:
        """Return the arrivals by key group, evenly spread over the time between two batches."""
        key_groups = self.start.key_groups
        slices = int(np.ceil((float(self.began_s[-1]) - self.first_s) / SLICE_S)) + 1
        counts = np.zeros(slices * key_groups, dtype=np.int64)
        for at_s, groups, _ in self.records():
            np.add.at(counts, (at_s / SLICE_S).astype(np.int64) * key_groups + groups, 1)
        return Trace(counts.reshape(slices, key_groups), SLICE_S)

    def records(self) -> Iterator[tuple[F64, I64, I64]]:
        """Yield arrivals in s since `first_s`, with key groups and numbers of batches.

        The records of a key group and batch are evenly spread over the time since the batch before, or
        since the earliest arrival that the batch's latency allows. Yields millions at a time, unordered.
        """
        ends_s = self.began_s - self.first_s
        oldest_s = [b.latency_ms.max / 1e3 if b.latency_ms else np.inf for b in self.batches]
        starts_s = np.maximum(np.concatenate([[0.0], ends_s[:-1]]), ends_s - np.array(oldest_s))
        # one row per batch and key group
        cells = np.array(
            [
                (number, group, records)
                for number, batch in enumerate(self.batches)
                for arrived in batch.arrivals
                for group, records in zip(arrived.groups, arrived.records, strict=True)
            ],
            dtype=np.int64,
        )
        pieces = min(len(cells), 1 + int(cells[:, 2].sum()) // AT_ONCE)
        for part in np.array_split(cells, pieces):
            batch_of, group_of, records_of = np.repeat(part, part[:, 2], axis=0).T
            place = np.arange(len(batch_of)) - np.repeat(
                np.cumsum(part[:, 2]) - part[:, 2], part[:, 2]
            )
            span_s = (ends_s - starts_s)[batch_of]
            yield starts_s[batch_of] + (place + 0.5) / records_of * span_s, group_of, batch_of


def _odd(batch: Batch, groups: int) -> str:
    """Return what is impossible in a batch of a query with `groups` key groups; else ``""``."""
    for arrived in batch.arrivals:
        if len(arrived.groups) != len(arrived.records):
            return "has more or fewer key groups than counts"
        if not all(0 <= group < groups for group in arrived.groups):
            return "has key groups that the query has not"
        if not all(0 <= count <= AT_ONCE for count in arrived.records):
            return "counts less than nothing, or too much"
    if batch.slots < 1:
        return "ran without a slot"
    if not all(_possible(slot) for slot in batch.slot_stats):
        return "has a slot that did what none can do"
    return ""


def _possible(slot: SlotStats) -> bool:
    """Return whether a slot's figures are possible."""
    took_ms = (slot.useful_ms, slot.computing_ms or 0.0, slot.waited_ms or 0.0)
    return 0 <= slot.served <= AT_ONCE and all(0.0 <= ms <= LONGEST_S * 1e3 for ms in took_ms)
