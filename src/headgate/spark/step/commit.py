"""Builds the manifest that commits a step from the reports of its slots."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.checkpoint.manifest import BlobEntry, FileEntry, Heads, Manifest, SectionEntry
from headgate.core.assignment import Assignment
from headgate.spark.job.job import OperatorState, Segment
from headgate.spark.job.pools import PoolState
from headgate.spark.job.reports import Report
from headgate.spark.step.begun import Begun
from headgate.spark.step.output import Outputs

LATE_FILES_KEPT = 256
"""Newest files of late records that a manifest names; older files are garbage. Chosen, not tuned: each
manifest has the whole list, 12 kB."""


@dataclass
class _Parts:
    """Collects the lists of a manifest."""

    sections: dict[str, dict[int, SectionEntry]]
    blobs: list[BlobEntry] = field(default_factory=list)
    payloads: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, FileEntry] = field(default_factory=dict)
    outputs: Outputs = field(default_factory=Outputs)
    late: list[list[Any]] = field(default_factory=list)


def next_manifest(
    begun: Begun,
    job: str,
    epoch: int,
    states: Mapping[str, OperatorState],
    reports: Sequence[Report],
    migration: Callable[[str], dict[str, Any] | None] = lambda _: None,
) -> Manifest:
    """Return the manifest of a step, and apply the step's reports to `states`.

    `migration` returns the manifest's entry of an operator's migration; None without a migration.
    """
    latest = begun.latest
    parts = _Parts(sections={name: {} for name in states})
    parts.late = list(latest.engine.get("late", ())) if latest else []
    now_ms = int(time.time() * 1000)
    for report in reports:
        _add(parts, report, states[report.operator])
        states[report.operator].apply(report, begun.number, now_ms)
    for name, state in states.items():
        state.settle([report for report in reports if report.operator == name])
    segments = [
        s for state in states.values() for waiting in state.backlog.values() for s in waiting
    ]
    parts.files |= _older_backlog(segments, parts.files, latest)
    return Manifest(
        job=job,
        step=begun.number,
        spark_batch=begun.spark_batch,
        epoch=epoch,
        assignments={name: assigned(s.assignment) for name, s in states.items()},
        watermarks={
            "late_us": latest.watermarks["evict_us"] if latest else 0,
            "evict_us": begun.watermark_us,
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
            **_delivery(parts.outputs, begun),
            "sources": begun.sources,
            "late": parts.late[-LATE_FILES_KEPT:],
            "drain": begun.drain,
        },
        previous=latest.digest if latest else None,
        payloads=parts.payloads,
    )


def pool_manifest(
    begun: Begun,
    job: str,
    states: Mapping[str, PoolState],
    outputs: Outputs,
    files: Mapping[str, FileEntry],
    payloads: Mapping[str, bytes],
    *,
    lost: int,
) -> Manifest:
    """Return the manifest of a step of pools.

    Parameters
    ----------
    states : mapping of str to PoolState    By stage, after the step.
    outputs : Outputs    Outputs of the last stage.
    files, payloads : mapping
        Written by the step's tasks; the manifest leaves out payloads of inner stages.
    lost : int    Rows lost in restarts since the first start.
    """
    latest = begun.latest
    segments = [
        s for state in states.values() for waiting in state.backlog.values() for s in waiting
    ]
    names = {entry["inline"] for entry in outputs.entries if "inline" in entry}
    older = _older_backlog(segments, files, latest)
    return Manifest(
        job=job,
        step=begun.number,
        spark_batch=begun.spark_batch,
        epoch=0,
        assignments={},
        watermarks={},
        heads={},
        sections={},
        files=tuple((older | dict(files)).values()),
        engine={
            "pools": {name: state.facts() for name, state in states.items()},
            "outputs": outputs.entries,
            **_delivery(outputs, begun),
            "sources": begun.sources,
            "rest": begun.drain,
            "lost": lost,
        },
        previous=latest.digest if latest else None,
        payloads={name: data for name, data in payloads.items() if name in names},
    )


def assigned(assignment: Assignment) -> dict[str, Any]:
    """Return an assignment in the manifest's form."""
    plain: dict[str, Any] = {"slots": assignment.slots, "slot_of": list(assignment.slot_of)}
    if assignment.split:
        plain["split"] = {str(group): list(shares) for group, shares in assignment.split.items()}
    return plain


def delivers(manifest: Manifest) -> bool:
    """Return whether the sink gets an output of a step."""
    outputs = manifest.engine["outputs"]
    return bool(manifest.engine.get("empty")) or any(entry["rows"] for entry in outputs)


def _delivery(outputs: Outputs, begun: Begun) -> dict[str, Any]:
    """Return the sink's number of a step, and whether the step is delivered without rows.

    Spark's file sink needs batch numbers without gaps, so only delivered steps count. The first step
    with input is always delivered: it leaves files with the schema, and calls a user's function.
    """
    before: int = begun.latest.engine["sink_batch"] if begun.latest else -1
    # a source without any data so far has no offset
    empty = before < 0 and any(begun.sources or ()) and not outputs.rows
    return {
        "sink_batch": before + 1 if outputs.rows or empty else before,
        **({"empty": True} if empty else {}),
    }


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
    segments: Iterable[Segment], known: Mapping[str, FileEntry], latest: Manifest | None
) -> dict[str, FileEntry]:
    """Return the entries of older backlog files in which records still wait."""
    waiting = {f"backlog/{segment[0]}" for segment in segments}
    before = {f.name: f for f in (latest.files if latest else ())}
    return {name: before[name] for name in sorted(waiting - set(known)) if name in before}
