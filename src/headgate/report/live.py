"""Draws the live view of a run: one frame of a terminal, from the journal alone."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headgate.core.input import escaped, shown
from headgate.journal.parts import SlotStats
from headgate.journal.schema import (
    AssignmentChange,
    Batch,
    ControlAct,
    Event,
    Restart,
    Retry,
    Start,
    Stop,
)
from headgate.report.finish import slo_met_text, slo_state_text
from headgate.report.format import bytes_text, clock_text, ms_text, since_text
from headgate.report.now import Now, health, now_of
from headgate.report.run import Run
from headgate.report.summary import rescale_added_ms, slo_of

BARS = "▁▂▃▄▅▆▇█"
LABEL_CELLS = 12
SLOTS_SHOWN = 12
"""Slots with a bar; the busiest, if there are more."""
EVENTS_SHOWN = 3
BAR_CELLS = 10
WIDE_CELLS = 110
"""Terminal width from which slots stand in two columns."""


def frame(run: Run, *, now_ms: int, width: int, planned_s: float | None = None) -> RenderableType:
    """Return one frame of the live view.

    Parameters
    ----------
    run : Run    Journal read so far.
    now_ms : int
        Wall clock, ms since 1970; a job without a recent line is silent. A picture of a dead job
        passes the run's end.
    width : int    Cells of the terminal.
    planned_s : float, optional    Planned length of the run, in s.
    """
    parts: list[RenderableType] = [_title(run, now_ms, planned_s)]
    last = run.last
    if last is None:
        parts.append(_labelled("", Text("waiting for the first batch", style="dim")))
    else:
        now = now_of(run)
        parts += [_rates(now, last), _latency(now), *_slo(run)]
        parts += _batch_times(run, width - LABEL_CELLS - 1)
        parts.append(_phases(now))
        parts.append(_slots(last, columns=2 if width >= WIDE_CELLS else 1))
        parts += [_state(last), _records(run)]
    parts += _events(run)
    return Group(*parts)


def _labelled(label: str, text: Text) -> Text:
    """Return a line with its label in the left column."""
    line = Text(f" {label:<{LABEL_CELLS - 1}}", style="bold", no_wrap=True, overflow="ellipsis")
    line.append_text(Text("", style="not bold").append_text(text))
    return line


def _title(run: Run, now_ms: int, planned_s: float | None) -> Text:
    """Return the first line: job, health, elapsed time, batch, slots and epoch."""
    start, last = run.start, run.last
    name = shown((start.workload or start.name) if start else "no start event")
    status = escaped(health(run, now_ms))
    alive = status.startswith(("running", "no "))
    # `headgate run` counts the planned time from the first batch.
    began_ms = run.rows[0].at_ms if run.rows and planned_s is not None else run.began_ms
    elapsed_s = ((now_ms if alive else run.ended_ms) - began_ms) / 1000 if run.start else 0.0
    line = Text(" headgate  ", style="bold cyan", no_wrap=True, overflow="ellipsis")
    line.append(name, style="bold white")
    style = "green" if alive else "dim" if status.startswith("finished") else "bold red"
    # The events have the reason of a failure, where there is room.
    line.append(f"  {status.partition(':')[0]}", style=f"not bold {style}")
    line.append(f"  {clock_text(elapsed_s)}", style="not bold default")
    if planned_s is not None:
        line.append(f" / {clock_text(planned_s)}", style="not bold dim")
    if last is not None:
        place = f"  batch {last.step}  slots {last.slots}  epoch {last.epoch}"
        line.append(place, style="not bold default")
    return line


def _rates(now: Now, last: Batch) -> Text:
    """Return the line of rates and backlog."""
    text = Text(f"in {now.in_per_s:,.0f}/s  out {now.out_per_s:,.0f}/s")
    text.append("   backlog ", style="bold")
    style = "yellow" if last.backlog else ""
    text.append(f"{last.backlog:,} ({bytes_text(last.backlog_bytes)})", style=style)
    if last.lag:
        text.append("   lag ", style="bold")
        behind = sum(last.lag.values())
        text.append(f"{behind:,}", style="yellow" if behind else "")
    if now.store_per_h is not None:
        requests, written = now.store_per_h
        text.append("   store ", style="bold")
        text.append(f"{requests:,.0f} requests/h, {bytes_text(written)}/h")
    if last.memory is not None:
        text.append("   in memory ", style="bold")
        text.append(f"{bytes_text(last.memory.memory_bytes)}, on disk ")
        text.append(bytes_text(last.memory.cold_bytes))
    return _labelled("records", text)


def _latency(now: Now) -> Text:
    """Return the line of latencies."""
    mean, p95, p99 = (ms_text(v) for v in (now.mean_ms, now.p95_ms, now.p99_ms))
    return _labelled("latency", Text(f"mean {mean} ms  p95 {p95}  p99 {p99}"))


def _slo(run: Run) -> list[Text]:
    """Return the lines of the SLO; none for a job without an SLO."""
    slo = slo_of(run)
    if slo is None:
        return []
    text = Text(f"{shown('; '.join(map(str, slo['texts'])))}  ")
    bad = slo["met"] is False or slo["state"] == "unreachable"
    style = "bold red" if bad else "green" if slo["met"] else ""
    text.append(slo_met_text(slo), style=style)
    # The state has a line of its own: an 80-cell terminal would cut the floor off.
    when = "now" if run.stop is None else "at the end"
    return [
        _labelled("SLO", text),
        _labelled("", Text(escaped(f"{when} {slo_state_text(slo)}"), style=style)),
    ]


def _batch_times(run: Run, cells: int) -> list[Text]:
    """Return the sparkline of batch times, one cell a batch, and the marks of changes below it."""
    rows = run.rows[-cells:]
    top_ms = max(0.0, *(row.duration_ms for row in rows))
    changed = {change.step for change in run.changes}
    line = Text()
    for row in rows:
        # Bars start at zero: a scale cut at the minimum would make every ripple look like a stall.
        share = max(0.0, row.duration_ms / top_ms) if top_ms else 0.0
        level = int(share * (len(BARS) - 1) + 0.5)
        line.append(BARS[level], style="bold yellow" if row.step in changed else "cyan")
    span_s = (rows[-1].at_ms - rows[0].at_ms) / 1000
    scale = Text(f"one bar a batch, {span_s:,.0f} s, top {ms_text(top_ms)} ms", style="dim")
    lines = [_labelled("batches", line), _labelled("", scale)]
    marks = _marks(run, {row.step: column for column, row in enumerate(rows)}, cells)
    return [lines[0], *([_labelled("", marks)] if marks else []), lines[1]]


def _marks(run: Run, column_of: dict[int, int], cells: int) -> Text:
    """Return a caret below each batch in which slots changed, with the time that the change added."""
    line = ""
    for change in rescale_added_ms(run):
        column = column_of.get(change["step"])
        added = change["added_ms"]
        cost = "" if added is None else f" ({added:+.0f} ms ± {change['spread_ms']:.0f})"
        label = f"^ {change['from']}→{change['to']} at {change['at_s']:.0f} s{cost}"
        # A label without room on the line is left out; the event lines have the change.
        if column is None or column < len(line) + bool(line) or column + len(label) > cells:
            continue
        line += " " * (column - len(line)) + label
    return Text(line, style="yellow")


def _phases(now: Now) -> Text:
    """Return the line of the times of a batch's phases."""
    order = ("wait", "plan", "slots", "manifest", "sink", "logs")
    known = [p for p in order if p in now.phases_ms]
    names = known + [p for p in now.phases_ms if p not in order]
    text = Text("  ".join(f"{shown(name, 40)} {ms_text(now.phases_ms[name])}" for name in names))
    text.append("  ms", style="dim")
    return _labelled("where", text)


def _slots(last: Batch, *, columns: int) -> RenderableType:
    """Return the bars of the slots by number; only the busiest where not all fit."""
    stats = sorted(last.slot_stats, key=lambda s: s.slot)
    hidden = 0
    if len(stats) > SLOTS_SHOWN:
        busiest = sorted(stats, key=lambda s: -s.useful_ms)[:SLOTS_SHOWN]
        hidden = len(stats) - SLOTS_SHOWN
        stats = sorted(busiest, key=lambda s: s.slot)
    table = Table.grid(padding=(0, 3))
    lines = -(-len(stats) // columns)
    for line in range(lines):
        table.add_row(*(_slot(slot, last) for slot in stats[line::lines]))
    if hidden:
        table.add_row(Text(f" and {hidden} less busy slots", style="dim"))
    return table


def _slot(stats: SlotStats, last: Batch) -> Text:
    """Return one slot: its share of the batch spent on records, its groups, its backlog."""
    share = min(1.0, stats.useful_ms / last.duration_ms) if last.duration_ms > 0 else 0.0
    share = max(0.0, share)
    full = round(share * BAR_CELLS)
    text = Text(f" slot {stats.slot:<3} ", style="bold", no_wrap=True)
    text.append("█" * full, style="not bold green" if share < 0.9 else "not bold red")  # noqa: PLR2004
    text.append("░" * (BAR_CELLS - full), style="not bold dim")
    detail = f" {share:4.0%}  {stats.groups:3d} groups  {stats.served:,} records"
    text.append(detail, style="not bold")
    if stats.backlog:
        text.append(f"  backlog {stats.backlog:,}", style="not bold yellow")
    return text


def _state(last: Batch) -> Text:
    """Return the line of state and watermark."""
    text = Text()
    text.append(f"{last.state_rows:,} entries  ")
    if last.state_bytes:
        text.append(f"{bytes_text(last.state_bytes)}  ")
    text.append(f"changelog {bytes_text(last.changelog_bytes)}  ")
    if last.watermark_us is not None:
        behind_s = last.at_ms / 1000 - last.watermark_us / 1e6
        held = "" if last.watermark_holder is None else f" (held by slot {last.watermark_holder})"
        text.append(f"watermark {-behind_s:+,.1f} s{held}  ")
    return _labelled("state", text)


def _records(run: Run) -> Text:
    """Return the line of the hottest key group and of dropped records."""
    text = Text()
    # Over the last batches, as in `headgate top`: the very last batch may have few records.
    groups, all_records = run.group_records()
    if groups and all_records:
        group, records = groups.most_common(1)[0]
        over = run.slots_of(group)
        split = f", split over {over} slots" if over > 1 else ""
        text.append(f"group {group} has {records / all_records:.1%} of records{split}   ")
    style = "yellow" if run.late or run.dropped else ""
    pools = "".join(f", {why.replace('_', ' ')} {n:,}" for why, n in sorted(run.dropped.items()))
    text.append(f"dropped: late {run.late:,}{pools}", style=style)
    return _labelled("hottest", text)


def _events(run: Run) -> list[Text]:
    """Return the lines of the last events, oldest first."""
    shown = [(e.at_ms, text) for e in run.events if (text := event_text(e))][-EVENTS_SHOWN:]
    return [
        _labelled(
            "events" if index == 0 else "",
            Text(f"{since_text(at_ms, run.began_ms)} {text}"),
        )
        for index, (at_ms, text) in enumerate(shown)
    ]


def told_at(run: Run, checkpoint: object) -> list[str]:
    """Return a line with the command that explains the newest change of slots; [] without a change."""
    decided = [change for change in run.changes if change.slots_before != change.slots_after]
    if not decided or not run.decisions:
        return []
    at = since_text(decided[-1].at_ms, run.began_ms)
    return [f"why: headgate why {checkpoint} --at {at}"]


def event_text(event: Event) -> str | None:
    """Return an event in one sentence, or None for events without an event line."""
    text = _event_text(event)
    return None if text is None else shown(text)


def _event_text(event: Event) -> str | None:
    if isinstance(event, AssignmentChange):
        what = (
            f"slots {event.slots_before} → {event.slots_after}"
            if event.slots_before != event.slots_after
            else "remap"
        )
        for group, *slots in event.split:
            what += f", group {group} split over {len(slots)} slots"
        why = f": {event.reason.removesuffix('.')}" if event.reason else ""
        groups = f"{event.groups_moved} groups, {bytes_text(event.bytes_moved)} moved; "
        # A stateless stage has no key groups to move.
        moved = groups if event.groups_moved else ""
        return f"{what} by {event.by}{why}; {moved}from batch {event.step}"
    if isinstance(event, ControlAct):
        why = f": {event.reason}" if event.reason else ""
        detail = f" {event.detail}" if event.detail else ""
        refused = f"; refused: {event.refused}" if event.refused else ""
        return f"{event.act}{detail} by {event.by}{why}{refused}"
    if isinstance(event, Retry):
        return (
            f"batch {event.step} failed in attempt {event.attempt} and is repeated: {event.error}"
        )
    if isinstance(event, Restart):
        return f"restarted at batch {event.step} from batch {event.recovered_from}"
    if isinstance(event, Start):
        groups = f", {event.key_groups} key groups" if event.key_groups else ""
        return f"started with {event.slots} slots{groups}"
    if isinstance(event, Stop):
        return f"failed: {event.error}" if event.error else f"ended: {event.reason}"
    return None
