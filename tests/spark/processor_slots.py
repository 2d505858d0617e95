"""One slot that serves steps of a PySpark processor; no JVM."""

from __future__ import annotations

import dataclasses
import secrets
from collections import Counter, defaultdict

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from headgate.operators.process import ProcessorOperator
from headgate.operators.processor import ProcessorSpec, TimeMode
from headgate.operators.serve import serve
from headgate.operators.spec import Kind, Leaf
from headgate.operators.step import GROUP, RECORDS, GroupState, Request
from headgate.spark.jvm.arrow import to_arrow_schema
from headgate.spark.read.declaration import declared
from headgate.spark.worker.arrow_processor import ArrowProcessor
from headgate.spark.worker.user_processor import RowProcessor
from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN

GROUPS = 4
_KINDS = {"string": T.StringType(), "bigint": T.LongType()}


def struct(text):
    """Return a schema from DDL's plainest form; Spark's own parser needs a JVM."""
    fields = [column.split() for column in text.split(", ")]
    return T.StructType([T.StructField(name, _KINDS[kind]) for name, kind in fields])


INPUT = struct("k string, v bigint, t string")
OUTPUT = struct("k string, what string, n bigint")


class Slots:
    """One slot that serves steps of a PySpark processor, with the changelog at hand."""

    def __init__(self, make, mode=TimeMode.NONE, limit_s=0.0, output=OUTPUT):
        self.limit_s = limit_s
        self.outputs = to_arrow_schema(output, timezone="UTC")
        self.make = lambda: self._made(make(), mode)
        processor = self.make()
        self.spec = ProcessorSpec(
            keys=(Leaf(Kind.BYTES),),
            outputs=self.outputs,
            processor=processor,
            name=make.__name__,
            time_mode=mode,
        )
        self.store = HeapStore(ProcessorOperator(self.spec).layout.table)
        self.sections = defaultdict(list)
        self.tokens = dict.fromkeys(range(GROUPS), EMPTY_TOKEN)
        self.due_us = dict.fromkeys(range(GROUPS), 2**63 - 1)
        self.step = 0

    def _made(self, processor, mode):
        if isinstance(processor, ArrowProcessor):
            return processor
        return RowProcessor(
            processor,
            keys=pa.schema([("k", pa.string())]),
            inputs=to_arrow_schema(INPUT, timezone="UTC"),
            initial=pa.schema([("k", pa.string()), ("v", pa.int64())]),
            outputs=self.outputs,
            states=declared(processor, mode),
            mode=mode,
        )

    def request(self, now_ms, watermark_ms):
        def chain(group):
            def since(token):
                known = self.sections[group]
                tokens = [section.token for section in known]
                if token in tokens:
                    return known[tokens.index(token) + 1 :]
                full = [i for i, section in enumerate(known) if section.full]
                return known[full[-1] if full else 0 :]

            return since

        groups = {
            g: GroupState(
                self.tokens[g],
                0,
                self.due_us[g],
                snapshot=bool(self.sections[g]) and (self.step + g) % 3 == 0,
            )
            for g in range(GROUPS)
        }
        return Request(
            secrets.token_hex(16),
            watermark_ms * 1000,
            groups,
            chain,
            timestamp_ms=now_ms,
            time_limit_s=self.limit_s,
        )

    def serve(self, rows, now_ms=0, watermark_ms=0, initial=()):
        output = self.table(rows, now_ms, watermark_ms, initial)
        return Counter(tuple(row.values()) for row in output.to_pylist())

    def table(self, rows, now_ms=0, watermark_ms=0, initial=()):
        # a task gets an object of its own, as PySpark's workers do
        operator = ProcessorOperator(dataclasses.replace(self.spec, processor=self.make()))
        there = dict(zip("kvt", zip(*rows, strict=True) if rows else ([], [], []), strict=True))
        inputs = enumerate(self.spec.processor.inputs)
        columns = {
            GROUP: pa.array([group_of(r[0]) for r in rows], pa.int32()),
            "k0": pa.array([r[0].encode() for r in rows], pa.binary()),
            **{f"v{i}": pa.array(there[column.name], column.type) for i, column in inputs},
            RECORDS: pa.array([1] * len(rows), pa.int64()),
        }
        before = None
        if initial:
            before = pa.table(
                {
                    GROUP: pa.array([group_of(r[0]) for r in initial], pa.int32()),
                    "k0": pa.array([r[0].encode() for r in initial], pa.binary()),
                    "i0": pa.array([r[0] for r in initial], pa.string()),
                    "i1": pa.array([r[1] for r in initial], pa.int64()),
                }
            )
        request = self.request(now_ms, watermark_ms)
        served = serve(operator, self.store, request, pa.table(columns), initial=before)
        for group, section in served.sections.items():
            self.sections[group].append(section)
            self.tokens[group] = request.token
            self.due_us[group] = served.groups[group].due_us
        self.step += 1
        return served.output

    def forget(self):
        """Lose the tables: the next step builds them from the changelog."""
        self.store = HeapStore(ProcessorOperator(self.spec).layout.table)


def group_of(key):
    return sum(map(ord, key)) % GROUPS


def tws_tester(processor, **options):
    """Return PySpark's ``TwsTester`` of a processor; the test is skipped where PySpark has none."""
    name = "pyspark.sql.streaming.tws_tester"
    return pytest.importorskip(name, reason="new in PySpark 4.2").TwsTester(processor, **options)


def of_tester(tester, rows):
    """Return what ``TwsTester`` makes of rows, grouped by key as a batch is."""
    by_key = defaultdict(list)
    for row in rows:
        by_key[row[0]].append(Row(k=row[0], v=row[1], t=row[2]))
    return Counter(
        (row.k, row.what, row.n) for key, mine in by_key.items() for row in tester.test(key, mine)
    )
