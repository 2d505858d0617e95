"""Declares the demo's workloads: each is an entry point of the group ``headgate.workloads``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from headgate.scenario.workload import Workload
from headgate_demo.spark import queries
from headgate_demo.spark.clicks import ClicksBesides, kafka_clicks
from headgate_demo.spark.sources import check_options

_nexmark = partial(
    Workload,
    options={"rate": "20000"},
    arrival="scheduled",
    check=partial(check_options, "nexmark"),
)

NEXMARK_Q0 = _nexmark(queries.q0, stateful=False)
NEXMARK_Q1 = _nexmark(queries.q1, stateful=False)
NEXMARK_Q2 = _nexmark(queries.q2, stateful=False)
NEXMARK_Q3 = _nexmark(queries.q3)
NEXMARK_Q4 = _nexmark(queries.q4)
NEXMARK_Q5 = _nexmark(queries.q5)
NEXMARK_Q6 = _nexmark(queries.q6)
NEXMARK_Q7 = _nexmark(queries.q7)
NEXMARK_Q8 = _nexmark(queries.q8)


def _check_log(options: Mapping[str, str]) -> None:
    # the query finds the log itself where no option names it
    check_options("replay", {"path": "-", **options})


SDSC = Workload(
    queries.sdsc,
    # A day in 144 s: 197 requests/s on average.
    options={"speed": "600"},
    arrival="scheduled",
    check=_check_log,
)

WORD_COUNT = Workload(
    queries.word_count,
    options={"rate": "15000"},
    arrival="scheduled",
    check=partial(check_options, "sentences"),
)

STOCK_EXCHANGE = Workload(
    queries.stock_exchange,
    options={"rate": "2000"},
    arrival="scheduled",
    reference=queries.stock_exchange_reference,
    check=partial(check_options, "stock_exchange"),
)

KAFKA_CLICKS = Workload(kafka_clicks, options={"rate": "2000"}, beside=ClicksBesides)
