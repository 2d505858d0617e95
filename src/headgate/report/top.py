"""Lists the hot key groups, and says whether moving them can help."""

from __future__ import annotations

from collections import Counter
from typing import Any

from headgate.core.errors import ConfigError
from headgate.report.run import Run

_UNSPLITTABLE = 0.5
"""A key group with more than this share of its slot's records leaves little to move. Chosen."""

_SHOWN = 10
"""Key groups listed."""


def top(run: Run) -> dict[str, Any]:
    """Return the hottest key groups and the busiest slots over the last batches.

    records: served in these batches; groups: [{group, records, share, slots}], descending, records
    as of `Run.group_records`, and slots the number over which the group is split, 1 for a whole group;
    slots: [{operator, slot, records, share, backlog}], descending; advice: a sentence or None.
    Raises `ConfigError`: the journal has no batch.
    """
    recent = list(run.recent)
    if not recent:
        msg = "the journal has no batch yet; wait for the first one."
        raise ConfigError(msg)
    groups, all_records = run.group_records()
    slots: Counter[tuple[str, int]] = Counter()
    for batch in recent:
        slots.update({(stats.operator, stats.slot): stats.served for stats in batch.slot_stats})
    records = sum(batch.served for batch in recent)
    backlog = {(s.operator, s.slot): s.backlog for s in recent[-1].slot_stats}
    shares = {
        "groups": [
            {"group": g, "records": n, "share": _share(n, all_records), "slots": run.slots_of(g)}
            for g, n in groups.most_common(_SHOWN)
        ],
        "slots": [
            {
                "operator": operator,
                "slot": slot,
                "records": n,
                "share": _share(n, records),
                "backlog": backlog.get((operator, slot), 0),
            }
            for (operator, slot), n in slots.most_common()
        ],
    }
    return {"records": records, **shares, "advice": _advice(run, groups, slots)}


def top_lines(figures: dict[str, Any]) -> list[str]:
    """Return the result of `top` as lines of text."""
    lines = [f"last batches: {figures['records']:,} records"]
    for row in figures["groups"]:
        split = f"  split over {row['slots']} slots" if row["slots"] > 1 else ""
        lines.append(
            f"  group {row['group']:>4}  {row['share']:6.1%}  {row['records']:,} records{split}"
        )
    several = len({row["operator"] for row in figures["slots"]}) > 1
    for row in figures["slots"]:
        of = f"  of {row['operator']}" if several else ""
        waits = f"  backlog {row['backlog']:,}" if row["backlog"] else ""
        lines.append(
            f"  slot  {row['slot']:>4}  {row['share']:6.1%}  {row['records']:,} records{of}{waits}"
        )
    return lines + ([f"  {figures['advice']}"] if figures["advice"] else [])


def _share(count: int, records: int) -> float:
    return round(count / records, 4) if records else 0.0


def _advice(run: Run, groups: Counter[int], slots: Counter[tuple[str, int]]) -> str | None:
    """Return a sentence if one key group is most of the busiest slot's load, which no move can divide."""
    if not groups or not slots:
        return None
    (group, most), ((_, slot), busiest) = groups.most_common(1)[0], slots.most_common(1)[0]
    if not busiest or most <= _UNSPLITTABLE * busiest or run.slots_of(group) > 1:
        return None
    return (
        f"key group {group} is {most / busiest:.0%} of what slot {slot}, the busiest, serves: moving "
        "groups cannot divide it. With an SLO, streamswitch splits it over several slots once it is "
        "too much for one, if its aggregates can be merged (`headgate why` says if not); else salt it."
    )
