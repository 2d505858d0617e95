"""From the reports of a step's slots to the manifest that commits it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.core.assignment import Assignment
from headgate.spark.job.job import OperatorState
from headgate.spark.job.reports import Report
from headgate.spark.step.output import Outputs
from headgate.state.manifest import BlobEntry, FileEntry, Heads, Manifest, SectionEntry


@dataclass(frozen=True)
class StepFacts:
    """What a step is, beside what its slots did.

    Attributes
    ----------
    job : str
    step, spark_batch, epoch : int
    watermark_us : int
    sources : list of str
        End offsets of the sources.
    drain : bool
        True for a step after Spark's last batch.
    """

    job: str
    step: int
    spark_batch: int
    epoch: int
    watermark_us: int
    sources: list[str] | None
    drain: bool


LATE_FILES_KEPT = 256
"""Files of late records that a manifest names, the newest; older ones are garbage. Chosen: every manifest
has the whole list, 12 kB of it."""


@dataclass
class _Parts:
    """The lists of a manifest in the making."""

    sections: dict[str, dict[int, SectionEntry]]
    blobs: list[BlobEntry] = field(default_factory=list)
    payloads: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, FileEntry] = field(default_factory=dict)
    outputs: Outputs = field(default_factory=Outputs)
    late: list[list[Any]] = field(default_factory=list)


def next_manifest(
    facts: StepFacts,
    states: Mapping[str, OperatorState],
    reports: Sequence[Report],
    latest: Manifest | None,
    migration: Callable[[str], dict[str, Any] | None] = lambda _: None,
) -> Manifest:
    """Return the manifest of a step, and bring `states` to where the step leaves them.

    `migration` returns what is to be kept of an operator's migration; None where there is none.
    """
    parts = _Parts(sections={name: {} for name in states})
    parts.late = list(latest.engine.get("late", ())) if latest else []
    now_ms = int(time.time() * 1000)
    for report in reports:
        _add(parts, report, states[report.operator])
        states[report.operator].apply(report, facts.step, now_ms)
    parts.files |= _older_backlog(states, parts.files, latest)
    delivered = bool(parts.outputs.rows)
    before: int = latest.engine["sink_batch"] if latest else -1
    return Manifest(
        job=facts.job,
        step=facts.step,
        spark_batch=facts.spark_batch,
        epoch=facts.epoch,
        assignments={name: assigned(s.assignment) for name, s in states.items()},
        watermarks={
            "late_us": latest.watermarks["evict_us"] if latest else 0,
            "evict_us": facts.watermark_us,
        },
        heads={n: Heads(tuple(s.tokens), tuple(s.steps)) for n, s in states.items()},
        sections=parts.sections,
        blobs=tuple(parts.blobs),
        files=tuple(parts.files.values()),
        engine={
            "operators": {
                name: s.engine_facts() | ({"migration": m} if (m := migration(name)) else {})
                for name, s in states.items()
            },
            "outputs": parts.outputs.entries,
            # Spark's file sink wants its batches numbered without gaps, so only deliveries count
            "sink_batch": before + 1 if delivered else before,
            "sources": facts.sources,
            "late": parts.late[-LATE_FILES_KEPT:],
            "drain": facts.drain,
        },
        previous=latest.digest if latest else None,
        payloads=parts.payloads,
    )


def assigned(assignment: Assignment) -> dict[str, Any]:
    """Return an assignment as the manifest keeps it."""
    return {"slots": assignment.slots, "slot_of": list(assignment.slot_of)}


def _add(parts: _Parts, report: Report, state: OperatorState) -> None:
    if report.changelog is not None:
        payload = report.changelog
        inline = None
        if payload.data is not None:
            inline = f"changelog-{report.token}"
            parts.payloads[inline] = payload.data
        parts.blobs.append(BlobEntry(payload.name, inline, payload.length, payload.crc32))
        for group, ref in report.sections.items():
            entry = SectionEntry(len(parts.blobs) - 1, ref, state.steps[group])
            parts.sections[report.operator][group] = entry
    if report.output is not None:
        parts.outputs.add(report, parts.payloads, parts.files)
    if report.waiting is not None:
        name = f"backlog/{report.waiting.name}"
        parts.files[name] = FileEntry(name, report.waiting.length, report.waiting.crc32)
    if report.late is not None:
        parts.late.append([report.operator, report.late.name])


def _older_backlog(
    states: Mapping[str, OperatorState],
    known: Mapping[str, FileEntry],
    latest: Manifest | None,
) -> dict[str, FileEntry]:
    """Return the entries of older backlog files in which records still wait."""
    waiting = {
        f"backlog/{segment[0]}"
        for state in states.values()
        for segments in state.backlog.values()
        for segment in segments
    }
    before = {f.name: f for f in (latest.files if latest else ())}
    return {name: before[name] for name in sorted(waiting - set(known)) if name in before}
