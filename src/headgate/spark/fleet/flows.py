"""Counts the records along each edge of a query's graph, including unread records at its sources.

The fleet computes the query's juice from these counts. A query serves all records of a batch, so the
share of its input that it has served does not show whether it keeps up. Unread input is known in three
ways: a source with limited batches reports its newest offset (`lag`); a record may have an arrival; and
records that arrive during a batch are unread until the next batch. The backlog over the arrivals is no
measure: in the paper, too, a job that once fell behind and now keeps up has juice 1. If a source limits
its batches, reports no newest offset, and its records have no time of arrival, unread input is not seen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from headgate.control.fleet.juice import Flow
from headgate.operators.join.spec import JoinSpec
from headgate.operators.step import InputCounts
from headgate.spark.fleet.lag import SourceLag
from headgate.spark.job.origins import Origins
from headgate.spark.job.reports import Report
from headgate.spark.jvm.gateway import Jvm
from headgate.spark.jvm.streams import keeps_rows, streams_of, united
from headgate.spark.read.plan import PlannedOperator, results_after_us

_SIDES = ("left ", "right ")


@dataclass(frozen=True)
class Entrance:
    """Names a place where records of a source enter the graph: an operator, or one side of a join."""

    operator: str
    place: int
    """Number of the operator's input."""
    name: str
    """Name of the source if Spark's progress does not have it."""
    sources: tuple[int, ...] = ()
    """The sources of the input, as indices of the query's distinct streams; `flows_of` matches them with
    the sources in Spark's progress."""


@dataclass(frozen=True)
class Graph:
    """Holds the graph of a query."""

    entrances: tuple[Entrance, ...]
    parents: Mapping[str, str]
    """The parent of each operator that reads another operator."""
    lossless: Collection[str] = ()
    """Operators that get as many rows as their parent puts out: the plan between drops and adds none."""
    windows_us: Mapping[str, int] = field(default_factory=dict)
    """As `Origins` takes it."""

    @classmethod
    def of(cls, operators: Sequence[PlannedOperator]) -> Graph:
        """Return the graph of a query's operators."""
        origins: list[tuple[str, int, str, list[Jvm]]] = []
        for operator in operators:
            if operator.parents:
                continue
            if not isinstance(operator.spec, JoinSpec):
                name = f"source of {operator.id}"
                origins.append((operator.id, 0, name, streams_of(operator.input_plan)))
                continue
            sides = united(operator.input_plan)
            for place, side in enumerate(_SIDES):
                leaves = streams_of(sides[place]) if len(sides) == len(_SIDES) else []
                origins.append((operator.id, place, f"{side}source of {operator.id}", leaves))
        distinct: list[Jvm] = []
        entrances = []
        for operator_id, place, name, leaves in origins:
            sources = tuple(_number(leaf, distinct) for leaf in leaves)
            entrances.append(Entrance(operator_id, place, name, sources))
        # only the first of several parents counts: the share of one input that gets through says nothing
        # about the other input
        below = [(o, o.parents[0]) for o in operators if o.parents]
        lossless = {
            o.id
            for o, up in below
            if o.upstream is not None and keeps_rows(o.input_plan, up.placeholder)
        }
        parents = {o.id: up.id for o, up in below}
        return cls(tuple(entrances), parents, lossless, results_after_us(operators))

    def at_once(self) -> set[str]:
        """Return the operators that put results out in the step of their records.

        They read a source, do not wait for the end of a window, and feed no other operator.
        """
        followed = {*self.parents.values(), *self.windows_us}
        return {entrance.operator for entrance in self.entrances} - followed

    def origins(self) -> Origins:
        """Return the tracker that follows the query's results back to its sources."""
        first: dict[str, tuple[str, ...]] = {entrance.operator: () for entrance in self.entrances}
        above: dict[str, tuple[str, ...]] = {n: (parent,) for n, parent in self.parents.items()}
        return Origins(first | above, self.windows_us)


@dataclass(frozen=True)
class Told:
    """Holds the counts of one operator in one step, all slots together."""

    inputs: tuple[InputCounts, ...]
    put_out: int
    """Rows of output."""


@dataclass(frozen=True)
class Read:
    """Holds the counts of a committed step."""

    batch: int
    """Number of Spark's batch."""
    read_s: float
    done_s: float
    """`read_s`, `done_s`: times when Spark had asked the sources for the batch, and when the step was
    committed; on one clock."""
    operators: Mapping[str, Told]


@dataclass(frozen=True)
class Span:
    """Holds the steps of a window, between two commits."""

    before: Read | None
    """The step whose commit begins the window."""
    reads: Sequence[Read]
    """The steps of the window; one or more."""
    read_s: float
    """Time up to which all arrivals have been read; later than the last step's `read_s` if
    no record has arrived in between."""
    now_s: float

    @property
    def seconds(self) -> float:
        """Return the seconds from `read_s` of the step before the window to `read_s` of the last step.

        0 without a step before.
        """
        return self.reads[-1].read_s - self.before.read_s if self.before is not None else 0.0

    def unread_s(self) -> float:
        """Return the growth of the unread input over the window, in seconds of arrivals.

        A running batch adds only its time beyond the longest cycle before it in the window: arrivals
        since the last batch was read are in this batch, or unread until it ends.
        """
        last, before = self.reads[-1], self.before
        at_end_s = 0.0 if self.read_s > last.read_s else last.done_s - last.read_s
        every = [*([] if before is None else [before]), *self.reads]
        cycles_s = [b.done_s - a.read_s for a, b in itertools.pairwise(every)]
        usual_s = max(cycles_s, default=last.done_s - last.read_s)
        at_start_s = 0.0 if before is None else before.done_s - before.read_s
        if before is None:
            at_end_s = 0.0  # there is no start to compare with
        return at_end_s - at_start_s + max(0.0, self.now_s - self.read_s - usual_s)


def told(reports: Sequence[Report]) -> dict[str, Told]:
    """Return the counts of each operator in a step's reports."""
    flows: dict[str, Told] = {}
    for report in reports:
        executed = report.served + report.late_records
        inputs = report.inputs or (InputCounts(report.arrived, executed, math.nan),)
        known = flows.get(report.operator)
        if known is None:
            flows[report.operator] = Told(inputs, report.output_rows)
        else:
            both = tuple(_sum(a, b) for a, b in zip(known.inputs, inputs, strict=True))
            flows[report.operator] = Told(both, known.put_out + report.output_rows)
    return flows


def flows_of(
    graph: Graph, span: Span, waiting: Mapping[tuple[str, int], float], lag: SourceLag
) -> tuple[list[Flow], float]:
    """Return the flow along each edge, and the records per second that arrived at the sources.

    `waiting`: records in the slots' backlog, by operator and its input.

    References
    ----------
    Henge 6, where T is the number of records that a parent sent, counted at the parent. For a source, T
    is the records read plus the growth of the unread ones. A record dropped as late counts as processed.
    Differs: if several streams are merged before an operator, the records that it executed are divided
    among the streams in proportion to the records that they sent.
    """
    flows: list[Flow] = []
    per_s = 0.0
    unread_s = span.unread_s()
    total = sum(len(e.sources) for e in graph.entrances)
    distinct = len({s for e in graph.entrances for s in e.sources})
    # Spark makes two sources of one leaf if it must distinguish their columns
    apart = lag.sources == total
    known = lag.sources == distinct or apart
    place = 0
    for entrance in graph.entrances:
        sources = entrance.sources
        if apart:
            sources = tuple(range(place, place + len(sources)))
        place += len(sources)
        some, arrived_per_s = _entering(
            entrance, sources if known else (), span, unread_s, waiting, lag
        )
        flows += some
        per_s += arrived_per_s
    for operator, parent in graph.parents.items():
        counts_of = [_input(read, operator, 0) for read in span.reads]
        sent = sum(counts.arrived for counts in counts_of)
        if operator in graph.lossless:
            sent = sum(r.operators[parent].put_out for r in span.reads if parent in r.operators)
        executed = float(sum(counts.executed for counts in counts_of))
        flows.append(Flow(parent, operator, float(sent), executed, waiting.get((operator, 0), 0.0)))
    return flows, per_s


def _entering(
    entrance: Entrance,
    sources: tuple[int, ...],
    span: Span,
    unread_s: float,
    waiting: Mapping[tuple[str, int], float],
    lag: SourceLag,
) -> tuple[list[Flow], float]:
    """Return the flow from each source of an entrance, and the arrivals there per second."""
    operator = entrance.operator
    counts_of = [_input(read, operator, entrance.place) for read in span.reads]
    arrived = float(sum(counts.arrived for counts in counts_of))
    executed = float(sum(counts.executed for counts in counts_of))
    waits = waiting.get((operator, entrance.place), 0.0)
    shares = _shares(sources, span, lag)
    grown = [_grown(entrance, source, part, span, lag) for source, part in shares.items()]
    if not any(lag.tells(source) for source in sources):
        grown = [_grown_by_arrival(entrance, arrived, span) * part for part in shares.values()]
    per_s = max(0.0, arrived + sum(grown)) / span.seconds if span.seconds > 0.0 else 0.0
    if span.before is None and unread_s > 0.0:
        per_s = arrived / max(span.reads[-1].done_s - span.reads[-1].read_s, 1e-3)
    flows = [
        Flow(
            f"source {source}" if sources else entrance.name,
            operator,
            max(0.0, arrived * part + more + per_s * part * unread_s),
            executed * part,
            waits,
        )
        for (source, part), more in zip(shares.items(), grown, strict=True)
    ]
    return flows, per_s


def _shares(sources: tuple[int, ...], span: Span, lag: SourceLag) -> dict[int, float]:
    """Return each source's share of an entrance's records."""
    if len(sources) < 2:  # noqa: PLR2004 (nothing to share)
        return dict.fromkeys(sources or (-1,), 1.0)
    rows = dict.fromkeys(sources, 0)
    for noted in lag.since(span.reads[0].batch):
        for source in sources:
            rows[source] += noted.sources[source].rows
    total = sum(rows.values())
    even = 1.0 / len(sources)
    return {source: n / total if total else even for source, n in rows.items()}


def _grown(entrance: Entrance, source: int, part: float, span: Span, lag: SourceLag) -> float:
    """Return the growth of a source's unread records over the window, from its offsets."""
    if source < 0 or not lag.tells(source):
        return 0.0
    first = span.reads[0] if span.before is None else span.before
    more = lag.behind(source, span.reads[-1].batch) - lag.behind(source, first.batch)
    noted = {n.batch: n.sources[source].read for n in lag.since(first.batch)}
    steps = [read for read in (first, *span.reads) if read.batch in noted]
    arrived = sum(_input(read, entrance.operator, entrance.place).arrived for read in steps)
    units = sum(noted[batch] for batch in {read.batch for read in steps})
    return more * arrived * part / units if units else 0.0


def _grown_by_arrival(entrance: Entrance, arrived: float, span: Span) -> float:
    """Return the growth of an entrance's unread records over the window, from the times of arrival.

    If a job falls behind, the records that it reads are older at each step.
    """
    if span.before is None:
        return 0.0
    known = [
        (read.read_s, newest_ms / 1e3)
        for read in (span.before, *span.reads)
        if not math.isnan(newest_ms := _input(read, entrance.operator, entrance.place).newest_ms)
    ]
    if not known:
        return 0.0
    (read_s, newest_s), (read_last_s, newest_last_s) = known[0], known[-1]
    went_s = newest_last_s - newest_s
    if went_s <= 0.0:
        return 0.0
    return arrived / went_s * (read_last_s - read_s - went_s)


def _input(read: Read, operator: str, place: int) -> InputCounts:
    counts = read.operators.get(operator)
    if counts is None or place >= len(counts.inputs):
        return InputCounts(0, 0, math.nan)
    return counts.inputs[place]


def _sum(counts: InputCounts, other: InputCounts) -> InputCounts:
    newest_ms = max(counts.newest_ms, other.newest_ms, key=lambda ms: -math.inf if ms != ms else ms)  # noqa: PLR0124
    return InputCounts(counts.arrived + other.arrived, counts.executed + other.executed, newest_ms)


def _number(leaf: Jvm, distinct: list[Jvm]) -> int:
    """Return the index of a stream in `distinct`, in which equal streams are one; add it if it is new."""
    for number, other in enumerate(distinct):
        if leaf.equals(other):
            return number
    distinct.append(leaf)
    return len(distinct) - 1
