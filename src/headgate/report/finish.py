"""Formats the last lines of a run for people."""

from __future__ import annotations

from typing import Any

from headgate.core.input import shown
from headgate.report.format import at_text, bytes_text, ms_text
from headgate.report.summary import NEIGHBOURS


def finish_lines(result: dict[str, Any]) -> list[str]:
    """Return the summary of a run as lines; `result` has the keys of `summary`."""
    latency = result["latency_ms"]
    slots = " → ".join(str(n) for n in result["slots_seen"])
    reasons = [f"{n:,} {why.replace('_', ' ')}" for why, n in result["dropped"].items()]
    restarts = result["query_restarts"]
    lines = [
        f"{result['workload']} finished: {result['duration_s']:.1f} s, "
        f"{result['batches']} batches, {result['records']:,} records into slots, {restarts} restarts",
        *(f"  {line}" for line in verification_lines(result)),
        f"  latency    mean {ms_text(latency['mean'])} ms, p50 {ms_text(latency['p50'])}, "
        f"p95 {ms_text(latency['p95'])}, p99 {ms_text(latency['p99'])}; "
        f"floor {ms_text(result['floor_ms'])} ms",
        f"  slots      {slots}",
        *_change_lines(result["rescale_added_ms"]),
        *_slo_lines(result),
        *_startup_lines(result),
        f"  dropped    {', '.join(reasons)}",
    ]
    if result["checkpoint"]:
        lines.append(f"  checkpoint {result['checkpoint']}")
    lines.append(f"  journal    {result['journal']}")
    return lines


def _startup_lines(result: dict[str, Any]) -> list[str]:
    """Return the line of the time until the first batch; none where that time was not measured."""
    if result.get("startup_s") is None:
        return []
    return [f"  start-up   {result['startup_s']:.1f} s until the first batch, apart from the above"]


def _slo_lines(result: dict[str, Any]) -> list[str]:
    """Return the lines of the SLO and the decisions; none without an SLO."""
    slo = result["slo"]
    if slo is None:
        return []
    decided = ", ".join(f"{count} {kind}" for kind, count in result["decisions"].items())
    return [
        f"  SLO        {'; '.join(slo['texts'])}: {slo_text(slo)}",
        f"  decisions  {decided or 'none'}; {ms_text(slo['loop_ms'])} ms a cycle, "
        f"{slo['cycles']} cycles; mean slots {result['slots_mean'] or 0:.2f}",
    ]


def slo_text(slo: dict[str, Any]) -> str:
    """Return in words the share of windows within the SLO, and the SLO's state when the run ended."""
    return f"{slo_met_text(slo)}; at the end {slo_state_text(slo)}"


def slo_met_text(slo: dict[str, Any]) -> str:
    """Return in words the share of windows within the SLO; `slo` has the keys of `slo_of`."""
    if slo["success"] is None:
        return "no window yet"
    worst = ""
    if slo["worst_group"] is not None and slo["success_worst"] is not None:
        worst = f", worst group {slo['worst_group']} {slo['success_worst']:.1%}"
    in_time = slo.get("records_in_time")
    records = "" if in_time is None else f"; {in_time:.1%} of records"
    return (
        f"{'met' if slo['met'] else 'MISSED'} since it began: {slo['success']:.1%} of windows in time "
        f"(want {slo['wanted']:.1%}{worst}{records})"
    )


def slo_state_text(slo: dict[str, Any]) -> str:
    """Return in words the state of a query's SLO, with the floor, which no number of slots lowers."""
    frozen = ", frozen" if slo["frozen"] else ""
    if slo.get("held_until_ms"):
        frozen += f", slots held until {at_text(slo['held_until_ms'])}"
    floor = f"floor {ms_text(slo['floor_ms'])} ms" if slo["floor_ms"] else "floor not known"
    return f"{slo['state']}{frozen}, {floor}"


def inspection_lines(inspection: dict[str, Any]) -> list[str]:
    """Return the content of a checkpoint as lines; `inspection` has the keys of `headgate.inspect`."""
    lines = [
        f"checkpoint {inspection['checkpoint']}",
        f"job        {inspection.get('job', 'unknown')}",
    ]
    if "step" in inspection:
        lines.append(
            f"last step  {inspection['step']} (Spark's batch {inspection['spark_batch']}), "
            f"epoch {inspection['epoch']}, backlog {inspection['backlog_rows']:,} rows"
        )
    for name, operator in inspection.get("operators", {}).items():
        lines.append(
            f"operator   {name}: {operator['slots']} slots, {operator['groups_with_state']} of "
            f"{operator['groups']} key groups have state, {operator['entries']:,} entries"
        )
        if "migration" in operator:
            lines += _migration_lines(operator["migration"])
    restart = inspection["restart"]
    lines.append(f"restart    would {restart['does']}")
    if restart["groups"]:
        lines.append(
            f"           reads {restart['sections']:,} sections of {restart['groups']:,} "
            f"key groups: {restart['rows']:,} rows, {bytes_text(restart['bytes'])}"
        )
    files, size = sum(inspection["files"].values()), sum(inspection["bytes"].values())
    lines.append(f"files      {files:,}, {bytes_text(size)}")
    checked = "every file was read" if inspection["checked"] else "--verify reads every file"
    lines.append(f"sound      {'yes' if inspection['sound'] else 'NO'} ({checked})")
    return lines + [f"problem    {problem}" for problem in inspection["problems"]]


def _migration_lines(migration: dict[str, Any]) -> list[str]:
    """Return the progress of a running migration; `migration` as `headgate.inspect` has it."""
    phases = ", ".join(
        f"{groups} {phase}" for phase, groups in migration["groups_by_phase"].items()
    )
    back = f"; going back: {migration['going_back']}" if migration["going_back"] else ""
    lines = [
        f"migration  {migration['strategy']}, {migration['slots_from']} to "
        f"{migration['slots_to']} slots; "
        f"key groups: {phases}{back}"
    ]
    return lines + [
        f"           subscale {row['subscale']}: slot {row['source']} to {row['destination']}, "
        f"{row['phase']}, {len(row['groups_answered'])} of {len(row['groups'])} key groups done"
        for row in migration["subscales"]
        if row["phase"] not in ("pending", "done")
    ]


def verification_lines(result: dict[str, Any]) -> list[str]:
    """Return a comparison as lines: the verdict, rows that differ, and the method of comparison."""
    lines = [f"verified   {verified_text(result)}"]
    for pair in result.get("differing") or ():
        lines += [f"  want     {_row_text(pair['want'])}", f"  got      {_row_text(pair['got'])}"]
    near = result.get("within_tolerance")
    if near and result["rows_compared"]:
        lines.append(f"tolerance  sums of floats, within 1e-9 (32 bits: 1e-5): {', '.join(near)}")
    left = result.get("settings_not_taken")
    if left:
        lines.append(
            f"note       the run had --conf {', '.join(left)}; none is taken from a checkpoint, type "
            "those on which the answer depends"
        )
    return lines


def _row_text(row: dict[str, str] | None) -> str:
    if row is None:
        return "no row"
    return shown(", ".join(f"{name}={value}" for name, value in row.items()), _ROW_CHARACTERS)


_ROW_CHARACTERS = 500


def verified_text(result: dict[str, Any]) -> str:
    """Return whether the output equals Spark's batch answer, in words."""
    if result["verified"] is None and result["rows_compared"] == 0:
        return "nothing to compare: no row was put out, and none is due"
    if result["verified"] is None:
        return "not compared (headgate verify CHECKPOINT compares with Spark's batch answer)"
    counts = f"{result['missing'] or 0:,} missing, {result['extra'] or 0:,} extra"
    if result["verified"]:
        return f"yes: {result['rows_compared']:,} rows equal Spark's batch answer ({counts})"
    late = (result.get("dropped") or {}).get("late", 0)
    why = f"; it counts the {late:,} late records that were dropped" if late else ""
    return (
        f"NO: {counts} of {result['rows_compared'] or 0:,} rows against Spark's batch answer{why}"
    )


def _change_lines(changes: list[dict[str, Any]]) -> list[str]:
    """Return a line per change of slots: the time of its batch, and of the batches around it."""
    return [
        f"  change     {c['from']} → {c['to']}: its batch took {ms_text(c['batch_ms'])} ms, the "
        f"{NEIGHBOURS} around it {ms_text(c['median_ms'])} ({c['added_ms']:+.0f}; their spread "
        f"{ms_text(c['spread_ms'])})"
        for c in changes
        if c["added_ms"] is not None
    ]
