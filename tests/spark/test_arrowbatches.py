from __future__ import annotations

import pytest
from pyspark.sql import types as T

from headgate.spark.jvm.arrowbatches import fit_arrow_batches, row_bytes

BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
NUMBERS = T.StructType([T.StructField("k", T.LongType()), T.StructField("g", T.IntegerType())])
TEXTS = T.StructType([T.StructField("k", T.StringType())])


@pytest.fixture
def session(spark):
    own = spark.newSession()
    own.conf.unset(ROWS)
    return own


def test_a_rows_width_follows_from_numbers_and_not_from_texts():
    nested = T.StructType([T.StructField("s", NUMBERS), T.StructField("d", T.DecimalType(38, 2))])
    assert row_bytes(NUMBERS) == 14
    assert row_bytes(nested) == 14 + 1 + 16 + 1
    assert row_bytes(TEXTS) is None
    assert row_bytes(T.StructType([T.StructField("s", TEXTS)])) is None


def test_rows_of_known_width_are_bounded_by_number_alone(session):
    session.conf.set(ROWS, 10_000_000)
    fit_arrow_batches(session, [NUMBERS, NUMBERS])
    assert int(session.conf.get(BYTES)) == 2**31 - 1
    assert int(session.conf.get(ROWS)) == 64 * 2**20 // 14


def test_texts_in_any_operators_rows_keep_the_bound_by_bytes(session):
    fit_arrow_batches(session, [NUMBERS, TEXTS])
    assert session.conf.get(BYTES, None) is None


def test_bounds_that_the_user_set_stay(session):
    session.conf.set(ROWS, 500)
    fit_arrow_batches(session, [NUMBERS])
    assert session.conf.get(ROWS) == "500"
    other = session.newSession()
    other.conf.set(BYTES, 2**20)
    fit_arrow_batches(other, [NUMBERS])
    assert int(other.conf.get(BYTES)) == 2**20
