"""Builds the expressions above the slots that turn merged leaves into each aggregate's value."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.operators.spec import Keep, Kept
from headgate.spark.jvm.expressions import data_type
from headgate.spark.jvm.folding import folded, of_words
from headgate.spark.jvm.gateway import Jvm
from headgate.spark.read import types


@dataclass(frozen=True)
class Buffer:
    """Describes one of Spark's aggregation buffers: its column above the slots, and its leaves."""

    name: str
    type: T.DataType
    columns: list[str]
    nullable: bool
    is_empty: bool = False

    def value(self) -> Column:
        """Return the buffer over the merged leaves."""
        if self.is_empty:
            # Spark's flag "no value yet", which slots keep as a count; null in a marker row
            return F.coalesce(F.col(self.columns[0]), F.lit(0)) == 0
        return types.rebuild(self.type, [F.col(n) for n in self.columns])


@dataclass(frozen=True)
class Collection:
    """Describes a collection of values: arguments, condition, and the leaves of a value."""

    arguments: list[Jvm]
    condition: Jvm | None
    kept: Kept
    widths: list[int]
    ordering: int

    def same(self, arguments: list[Jvm], condition: Jvm | None, keep: Keep) -> bool:
        """Return whether this collection has the values of an aggregate with these arguments."""
        if self.kept.keep is not keep or len(self.arguments) != len(arguments):
            return False
        if self.condition is None or condition is None:
            if self.condition is not condition:
                return False
        elif not self.condition.semanticEquals(condition):
            return False
        return all(a.semanticEquals(b) for a, b in zip(self.arguments, arguments, strict=True))


@dataclass(frozen=True)
class Sketch(Buffer):
    """Describes the buffer of a sketch, whose value is its estimate."""

    spark: SparkSession | None = None
    function: Jvm = None
    words: int = 0

    def value(self) -> Column:
        """Return the estimate over the sketch's column."""
        assert self.spark is not None
        return of_words(self.spark, self.function, F.col(self.columns[0]), self.words)


@dataclass(frozen=True)
class Folded(Buffer):
    """Describes the result of Spark's own function over the values of a collection."""

    spark: SparkSession | None = None
    function: Jvm = None
    kept: Collection | None = None
    distinct: bool = False

    def value(self) -> Column:
        """Return the result over the collection's column."""
        collection = self.kept
        assert collection is not None
        assert self.spark is not None
        items = F.col(self.columns[0])
        if collection.ordering:
            items = F.sort_array(items)
        fields = [f"c{i}" for i in range(len(collection.arguments))]

        def item(leaves: Column) -> Column:
            parts, at = [], collection.ordering
            for name, argument, width in zip(
                fields, collection.arguments, collection.widths, strict=True
            ):
                columns = [leaves.getField(f"x{i}") for i in range(at, at + width)]
                parts.append(types.rebuild(data_type(argument.dataType()), columns).alias(name))
                at += width
            return F.struct(*parts)

        values = F.transform(items, item)
        kinds = [data_type(argument.dataType()) for argument in collection.arguments]
        if self.distinct and not all(map(types.in_order, kinds)):
            # values of different bytes may still be equal, such as texts under a collation
            values = F.array_distinct(values)
        return folded(self.spark, self.function, values, fields)
