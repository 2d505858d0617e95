"""A query goes on from a checkpoint that an earlier headgate wrote."""

from __future__ import annotations

import tarfile
from collections import Counter
from pathlib import Path

import old_checkpoints
import pytest

ARCHIVE = Path(__file__).parent / "data" / "checkpoints-0.1.tar.xz"

PUT_OUT_BEFORE = 3_044
"""Rows that the archived query of pools had put out: the rest waited at its replicas, or was to come."""


@pytest.fixture
def archived(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path / "old", filter="data")
    return tmp_path / "old"


@pytest.mark.parametrize(
    "job", ["aggregate", pytest.param("join", marks=pytest.mark.thorough), "processor"]
)
def test_a_stateful_query_goes_on_where_an_earlier_version_stopped(spark, archived, tmp_path, job):
    continued = old_checkpoints.second_half(spark, job, archived / job)
    anew = tmp_path / "new"
    old_checkpoints.first_half(spark, job, anew)
    assert Counter(continued) == Counter(old_checkpoints.second_half(spark, job, anew))
    assert continued


def test_rows_that_waited_at_replicas_of_an_earlier_version_are_served(spark, archived):
    continued = Counter(old_checkpoints.second_half(spark, "pools", archived / "pools"))
    every = Counter(old_checkpoints.tenfold_bids(spark, old_checkpoints.ALL))
    assert not continued - every
    assert continued.total() == every.total() - PUT_OUT_BEFORE
    # some are of the first half: they came before the archive was written, and waited in it
    assert continued & Counter(old_checkpoints.tenfold_bids(spark, old_checkpoints.HALF))
