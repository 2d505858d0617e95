"""Queries by seed; see `grammar`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from grammar import Draw, Query
from grammar_above import above
from grammar_chains import chain
from grammar_functions import by_function
from grammar_operators import aggregate, duplicates, grouping_sets, join, pivot
from grammar_sql import limited, sql, stateless

CORES: dict[str, Callable[[Draw], Query]] = {
    "aggregate": aggregate,
    "grouping sets": grouping_sets,
    "pivot": pivot,
    "duplicates": duplicates,
    "join": join,
    "function": by_function,
    "stateless": stateless,
    "limit": limited,
    "sql": sql,
    "chain": chain,
}
_OFTEN = {
    "aggregate": 8,
    "pivot": 1,
    "grouping sets": 1,
    "duplicates": 2,
    "join": 3,
    "function": 2,
    "sql": 4,
    "chain": 6,
}
"""How often people write what; all others once."""


def generate(seed: int) -> tuple[Query, Draw]:
    """Return query `seed`, and what was drawn for it."""
    draw = Draw(seed)
    name = draw.rng.choice([name for name in CORES for _ in range(_OFTEN.get(name, 1))])
    draw.used.append(f"core: {name}")
    draw.offered |= {f"core: {other}" for other in CORES}
    query = CORES[name](draw)
    if "(distinct " in query.text:
        query = replace(query, batch=True)
    if name != "limit":
        query = above(draw, query)
    # a table in memory does not say what came last
    sink = draw.one(
        "sink", ["foreachBatch"] if query.mode == "update" else ["foreachBatch", "memory"]
    )
    return replace(query, sink=sink, text=f"{seed} {query.mode} into {sink}: {query.text}"), draw
