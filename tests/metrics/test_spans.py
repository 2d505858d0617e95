"""Spans of OpenTelemetry: a batch with its phases, and what happened behind it, linked to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from journals import START, batch
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from headgate.journal import AssignmentChange, Decided, Event, Retry, Stop, Wish
from headgate.journal.writer import JournalWriter
from headgate.metrics.spans import write_spans


def spans_of(directory: Path, *events: Event) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    end = write_spans(provider)
    try:
        with JournalWriter(directory / "journal.jsonl") as writer:
            for event in events:
                writer.write(event)
    finally:
        end()
    return list(exporter.get_finished_spans())


def test_a_batch_is_a_span_with_its_phases(tmp_path: Path) -> None:
    one = replace(
        batch(3), at_ms=10_000, duration_ms=500.0, phases_ms={"plan": 200.0, "slots": 300.0}
    )
    (span,) = spans_of(tmp_path, replace(START, name="clicks"), one)
    assert span.name == "headgate batch"
    assert span.parent is None
    assert (span.start_time, span.end_time) == (9_500_000_000, 10_000_000_000)
    assert [(e.name, e.timestamp, dict(e.attributes or {})) for e in span.events] == [
        ("plan", 9_500_000_000, {"duration_ms": 200.0}),
        ("slots", 9_700_000_000, {"duration_ms": 300.0}),
    ]
    facts = dict(span.attributes or {})
    assert facts["headgate.query"] == "clicks"
    assert facts["headgate.step"] == 3
    assert facts["headgate.slots"] == one.slots
    assert facts["headgate.arrived"] == one.arrived


def test_a_decision_and_its_change_are_linked_to_the_batch_before(tmp_path: Path) -> None:
    wish = (Wish("a", "scale-out", 3, 4),)
    decided = Decided("unified", "rule", "too slow", acts=True, wishes=wish, at_ms=2_000)
    nothing = Decided("unified", "rule", "all is well", acts=True, at_ms=2_000)
    change = AssignmentChange(1, 1, 2, 3, 4, 500, "unified", "too slow", at_ms=2_001)
    first, *rest = spans_of(tmp_path, START, batch(0), nothing, decided, change)
    assert [span.name for span in rest] == ["headgate decision", "headgate change"]
    for span in rest:
        assert [link.context.span_id for link in span.links] == [first.context.span_id]
    assert dict(rest[0].attributes or {})["headgate.wishes"] == "scale-out of a to 3"
    facts = dict(rest[1].attributes or {})
    assert (facts["headgate.slots_before"], facts["headgate.slots_after"]) == (2, 3)
    assert (facts["headgate.groups_moved"], facts["headgate.bytes_moved"]) == (4, 500)


def test_a_retry_and_a_failure_are_errors_and_a_clean_end_is_nothing(tmp_path: Path) -> None:
    events = (START, Retry(4, 1, "worker lost"), Stop("failed", "ValueError: no"), Stop("stopped"))
    retry, failure = spans_of(tmp_path, *events)
    assert [span.name for span in (retry, failure)] == ["headgate retry", "headgate failure"]
    assert retry.status.status_code is failure.status.status_code is StatusCode.ERROR
    assert (retry.status.description, failure.status.description) == (
        "worker lost",
        "ValueError: no",
    )
    assert not retry.links


def test_the_spans_of_a_life_are_as_recorded(tmp_path: Path, recorded: Callable[..., None]) -> None:
    """Times from the beginning on, and every attribute, of two starts under different names."""
    wishes = (Wish("a", "scale-out", 3, 4), Wish("b", "scale-in", 1, 2))
    events: list[Event] = [
        batch(0), replace(START, name=""), batch(1, latency_ms=None, phases_ms={}), START,
        batch(2, attempts=2), Retry(3, 1, "worker lost", at_ms=4_100),
        Decided("unified", "out", "too slow", acts=False, wishes=wishes, at_ms=4_200),
        AssignmentChange(3, 1, 2, 3, 4, 500, "eve", "a sale", "a", at_ms=4_300), batch(3),
        Decided("unified", "calm", "all is well", acts=True, at_ms=5_200),
        AssignmentChange(4, 2, 3, 3, 1, 9, "eve", at_ms=5_300), Stop("user", at_ms=6_000),
        Stop("failed", "disk full", at_ms=6_001),
    ]  # fmt: skip
    spans = spans_of(tmp_path, *events)
    number = {span.context.span_id: at for at, span in enumerate(spans)}
    lines = []
    for span in spans:
        assert span.parent is None
        links = [number[link.context.span_id] for link in span.links]
        lines.append(f"{span.name} {span.start_time} to {span.end_time}, links {links}")
        lines.append(f"    {span.status.status_code.name} {span.status.description}")
        facts = dict(span.attributes or {})
        facts["headgate.query"] = str(facts["headgate.query"]).replace(
            tmp_path.parent.name, "<here>"
        )
        lines.append(f"    {facts}")
        lines += [f"    {e.name} {e.timestamp} {dict(e.attributes or {})}" for e in span.events]
    recorded("spans", lines)
