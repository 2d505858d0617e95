"""Turns the columns of ``headgate.ordered`` into leaves of an operator's state.

The first record is the least by these columns, and the last the greatest: MIN and MAX over several
leaves, whose result does not depend on the order of merges. So no record is sorted, and none waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column

from headgate.core.errors import ConfigError, nearest
from headgate.operators.spec import Leaf
from headgate.spark.jvm.expressions import column, data_type
from headgate.spark.jvm.gateway import Jvm
from headgate.spark.read import types
from headgate.spark.read.reading import Reading
from headgate.spark.settings.options import ORDERED


def positions(ordered: Iterable[str], names: list[str]) -> tuple[int, ...]:
    """Return the positions in `names` of the columns that order records.

    Raises `ConfigError`: a column is missing in `names`.
    """
    places = []
    for name in ordered:
        if name not in names:
            hint = nearest(name, names) or f"; it reads {', '.join(names)}."
            msg = f'{ORDERED.key} names "{name}", which an order-sensitive operator does not read{hint}'
            raise ConfigError(msg)
        places.append(names.index(name))
    return tuple(places)


class RecordOrder:
    """Holds the columns of an aggregate's input that order its records.

    `attributes` (iterable of attribute): the input columns of the aggregate.
    """

    def __init__(self, reading: Reading, attributes: Iterable[Jvm]) -> None:
        self.given = bool(reading.ordered)
        self._reading = reading
        self._attributes = list(attributes)
        self.used: list[Jvm] = []
        """The ordering columns, if some function uses them; empty otherwise."""

    def leaves(self) -> list[tuple[Leaf, Column]]:
        """Return the leaves by which records are compared, the most significant first.

        Raises `ConfigError`: a column is missing; `UnsupportedQuery`: a column's type has no order.
        """
        names = [attribute.name() for attribute in self._attributes]
        leaves = []
        self.used = [self._attributes[at] for at in positions(self._reading.ordered, names)]
        for position in positions(self._reading.ordered, names):
            attribute = self._attributes[position]
            value = column(self._reading.spark, attribute)
            leaves += types.leaves(data_type(attribute.dataType()), value, names[position])
        return leaves
