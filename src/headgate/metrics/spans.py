"""Makes OpenTelemetry spans from the events in queries' journals; needs the extra ``otel``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanContext, StatusCode, TracerProvider

from headgate.journal import AssignmentChange, Batch, Decided, Event, Retry, Start, Stop
from headgate.journal.listeners import on_event

_NS_PER_MS = 1_000_000

Value = str | int | float | bool


class SpanWriter:
    """Writes spans for the events of journals: one for each batch, decision, change, retry and failure.

    The phases of a batch are events of its span. Every other span takes no time, and links to the span
    of the journal's last batch before.

    `provider`: where spans go; None for the program's own provider.
    """

    def __init__(self, provider: TracerProvider | None) -> None:
        self._tracer = trace.get_tracer("headgate", tracer_provider=provider)
        self._names: dict[str, str] = {}
        self._batches: dict[str, SpanContext] = {}

    def __call__(self, journal: str, event: Event) -> None:
        """Write the span of an event, if events of its kind have a span."""
        facts: dict[str, Value] = {}
        match event:
            case Start():
                self._names[journal] = event.name or Path(journal).parent.parent.name
            case Batch():
                self._batch(journal, event)
            case Decided() if event.wishes:
                wishes = ", ".join(f"{w.kind} of {w.operator} to {w.slots}" for w in event.wishes)
                facts = {"policy": event.policy, "rule": event.rule, "reason": event.reason}
                facts |= {"acts": event.acts, "wishes": wishes}
                self._moment(journal, "decision", event.at_ms, facts)
            case AssignmentChange():
                facts = {"operator": event.operator, "by": event.by, "reason": event.reason}
                facts |= {"slots_before": event.slots_before, "slots_after": event.slots_after}
                facts |= {"groups_moved": event.groups_moved, "bytes_moved": event.bytes_moved}
                self._moment(journal, "change", event.at_ms, facts)
            case Retry():
                facts = {"step": event.step, "attempt": event.attempt}
                self._moment(journal, "retry", event.at_ms, facts, error=event.error)
            case Stop() if event.error is not None:
                self._moment(journal, "failure", event.at_ms, facts, error=event.error)

    def _batch(self, journal: str, batch: Batch) -> None:
        end_ns = batch.at_ms * _NS_PER_MS
        at_ns = end_ns - round(batch.duration_ms * _NS_PER_MS)
        facts: dict[str, Value] = {
            "step": batch.step,
            "slots": batch.slots,
            "arrived": batch.arrived,
            "served": batch.served,
            "emitted": batch.emitted,
            "backlog": batch.backlog,
        }
        if batch.latency_ms is not None:
            facts["latency_mean_ms"] = batch.latency_ms.mean
        span = self._begin(journal, "batch", at_ns, facts, [])
        for phase, took_ms in batch.phases_ms.items():
            span.add_event(phase, {"duration_ms": took_ms}, timestamp=at_ns)
            at_ns += round(took_ms * _NS_PER_MS)
        span.end(end_ns)
        self._batches[journal] = span.get_span_context()

    def _moment(
        self, journal: str, kind: str, at_ms: int, facts: dict[str, Value], error: str | None = None
    ) -> None:
        before = self._batches.get(journal)
        links = [] if before is None else [Link(before)]
        span = self._begin(journal, kind, at_ms * _NS_PER_MS, facts, links)
        if error is not None:
            span.set_status(StatusCode.ERROR, error)
        span.end(at_ms * _NS_PER_MS)

    def _begin(
        self, journal: str, kind: str, at_ns: int, facts: dict[str, Value], links: list[Link]
    ) -> Span:
        attributes: dict[str, Value] = {f"headgate.{key}": value for key, value in facts.items()}
        attributes["headgate.query"] = self._names.get(journal, "")
        name = f"headgate {kind}"
        return self._tracer.start_span(
            name, context=trace.set_span_in_context(trace.INVALID_SPAN), attributes=attributes,
            links=links, start_time=at_ns,
        )  # fmt: skip


def write_spans(provider: TracerProvider | None = None) -> Callable[[], None]:
    """Write spans for all queries that this process starts from now on; return a function to stop.

    `provider`: where spans go; default: the program's own provider, as
    ``opentelemetry.trace.set_tracer_provider`` sets it.
    """
    return on_event(SpanWriter(provider))
