"""Writes the state of headgate's operators into plain Spark's stores, by kind of operator."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.operators.deduplicate import DeduplicateSpec
from headgate.operators.join.spec import JoinSpec
from headgate.operators.processor import ProcessorSpec
from headgate.spark.plain.entries import DEFAULT, Entries, OurState, of_aggregate, of_keys
from headgate.spark.plain.waiting import of_group_state, of_rows


def stores(ours: OurState) -> Mapping[str, Entries]:
    """Return the entries of each of Spark's stores, by its name.

    Raises `UnsupportedQuery`: Spark's state and headgate's differ in content.
    """
    spec = ours.operator.spec
    if isinstance(spec, JoinSpec):
        return of_rows(ours, spec)
    if isinstance(spec, ProcessorSpec):
        return of_group_state(ours, spec)
    if isinstance(spec, DeduplicateSpec):
        return {DEFAULT: of_keys(ours)}
    return {DEFAULT: of_aggregate(ours)}
