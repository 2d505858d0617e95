"""Adapts private calls to Spark's minor releases, with one adapter for each.

The adapter of an older minor inherits from the next minor's adapter, and overrides differing calls.
Differences in Python, in pandas frames and data sources, are in `frames` and `datasources`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import pyspark

from headgate.core.errors import HeadgateError
from headgate.spark.jvm.gateway import Jvm


class Spark43:
    """Adapts private calls to Spark 4.3."""

    name = "4.3"
    """The minor release."""

    pipelines_python = True
    """Whether Spark can send rows to a Python function while it reads results of earlier rows."""

    def logical_rdd(self, node: Jvm, *fields: Jvm) -> Jvm:
        """Return a leaf of the class `node`; `fields`: its arguments up to the constraints."""
        return node(*fields, False)

    def inline_cte(self, node: Jvm) -> Jvm:
        """Return the rule that replaces references to common table expressions by their plans."""
        # in this order: always inline, do not keep unused expressions, not during Spark's analysis
        return node(True, False, False)

    def data_source(self, node: Jvm, *fields: Jvm) -> Jvm:
        """Return a data source of the older kind; `fields`: its arguments up to a catalog's table."""
        return node(*fields, fields[-1])

    def micro_batch_write(self, node: Jvm, relation: Jvm, *fields: Jvm) -> Jvm:
        """Return the plan that writes a micro-batch into the table of a `relation`."""
        return node(relation, *fields)

    def create_sink(self, source: Jvm, mode: Jvm, schema: Jvm) -> Jvm:
        """Return the sink of the older interface of a data source, for rows of a schema."""
        return source.createSink(mode, schema)

    def batch_notes(self, offsets: Jvm) -> Jvm:
        """Return Spark's metadata beside the offsets of a batch, an Option."""
        return offsets.metadataOpt()

    def state_rewriter(self, node: Jvm, *fields: Jvm) -> Jvm:
        """Return the JVM object that rewrites the state of a stopped query."""
        return node(*fields)


class Spark42(Spark43):
    """Spark 4.2: a leaf, the rule of common table expressions and a sink have fewer arguments."""

    name = "4.2"
    pipelines_python = False

    def logical_rdd(self, node: Jvm, *fields: Jvm) -> Jvm:
        """As of 4.3."""
        return node(*fields)

    def inline_cte(self, node: Jvm) -> Jvm:
        """As of 4.3."""
        return node(True, False)

    def create_sink(self, source: Jvm, mode: Jvm, schema: Jvm) -> Jvm:
        """As of 4.3, without the rows' schema."""
        return source.createSink(mode)


class Spark41(Spark42):
    """Spark 4.1: a data source and a write have other arguments; the log's metadata has another name."""

    name = "4.1"

    def data_source(self, node: Jvm, *fields: Jvm) -> Jvm:
        """As of 4.3."""
        return node(*fields)

    def micro_batch_write(self, node: Jvm, relation: Jvm, *fields: Jvm) -> Jvm:
        """As of 4.3."""
        none = fields[-1]
        return node(none, relation.table(), *fields)

    def batch_notes(self, offsets: Jvm) -> Jvm:
        """As of 4.3."""
        return offsets.metadata()

    def state_rewriter(self, node: Jvm, *fields: Jvm) -> Jvm:
        """Raise HeadgateError, because Spark 4.1 has no class that writes state."""
        del node, fields
        msg = "Spark 4.1 cannot write the state of a stopped query; export with Spark 4.2 or later."
        raise HeadgateError(msg)


MINORS: Mapping[str, type[Spark43]] = MappingProxyType(
    {one.name: one for one in (Spark41, Spark42, Spark43)}
)
"""The adapters by their minor release, oldest first."""


_LACKING = ("4.1.0", "4.1.1")
"""Releases that lack methods of headgate's contract; `headgate doctor --contract` lists them."""


def adapter_for(version: str) -> Spark43:
    """Return the adapter for a version of PySpark. Raises `HeadgateError`: there is no adapter."""
    minor = ".".join(version.split(".")[:2])
    if version in _LACKING:
        msg = f"PySpark {version} lacks methods that headgate calls; install {minor}.2 or a newer one."
        raise HeadgateError(msg)
    if minor not in MINORS:
        known = ", ".join(MINORS)
        msg = (
            f"this is PySpark {version}, and headgate knows the inside of Spark {known}; install one "
            f"of them, such as pyspark=={list(MINORS)[-1]}.*."
        )
        raise HeadgateError(msg)
    return MINORS[minor]()


@cache
def adapter() -> Spark43:
    """Return the adapter for the installed PySpark."""
    return adapter_for(pyspark.__version__)
