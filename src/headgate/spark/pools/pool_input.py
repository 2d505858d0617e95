"""Builds the input of the stages of a query of pools: rows of the source, and output of other stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from headgate.spark.jvm.gateway import Jvm
from headgate.spark.jvm.plans import Graft, computed_rows, leaf, of_rows, replace_leaf
from headgate.spark.read.stages import Hole, Stage

_WHICH = "headgate_source"


class SourceRows:
    """Unites the rows of all stages that read a source in one stream, and splits a batch by stage.

    Two stages that read one stream read it twice, as in plain Spark: each has its own branch of the
    plan.

    `stages`: the stages that read the source.
    """

    def __init__(self, spark: SparkSession, stages: Sequence[Stage]) -> None:
        self._numbers = {stage.id: n for n, stage in enumerate(stages)}
        frames = [of_rows(spark, stage.input_plan) for stage in stages]
        self._names = [frame.columns for frame in frames]
        self.stream = frames[0]
        if len(frames) == 1:
            return
        structs = [
            F.struct(*(F.col(old).alias(new) for old, new in zip(*_renamed(frame), strict=True)))
            for frame in frames
        ]
        kinds = [
            frame.select(struct.alias("s")).schema[0].dataType
            for frame, struct in zip(frames, structs, strict=True)
        ]
        tagged = [
            frame.select(F.lit(n).alias(_WHICH), *_columns(structs[n], n, kinds))
            for n, frame in enumerate(frames)
        ]
        self.stream = tagged[0]
        for more in tagged[1:]:
            self.stream = self.stream.union(more)

    def of(self, stage: Stage, batch: DataFrame) -> DataFrame:
        """Return the rows of a batch that a stage reads."""
        if len(self._names) == 1:
            return batch
        n = self._numbers[stage.id]
        columns = [F.col(f"s{n}.f{k}").alias(name) for k, name in enumerate(self._names[n])]
        return batch.where(F.col(_WHICH) == n).select(*columns)


def _renamed(frame: DataFrame) -> tuple[list[str], list[str]]:
    old = [f"`{name}`" for name in frame.columns]
    return old, [f"f{k}" for k in range(len(old))]


def _columns(own: Column, number: int, kinds: Sequence[DataType]) -> list[Column]:
    """Return a column for each source, of which only `own` has a value."""
    return [
        (own if k == number else F.lit(None).cast(kind)).alias(f"s{k}")
        for k, kind in enumerate(kinds)
    ]


class Grafts:
    """Fills the holes of a plan, for every batch, with the rows of the stages that the holes stand for.

    `plan`: plan node. `holes`: leaves of the plan.
    """

    def __init__(self, spark: SparkSession, plan: Jvm, holes: Sequence[Hole]) -> None:
        self._spark = spark
        self._plan = plan
        self._holes = holes
        self._graft = Graft(spark, plan, holes[0].leaf) if len(holes) == 1 else None

    def over(self, rows_of: Callable[[str], DataFrame]) -> DataFrame:
        """Return the DataFrame of the plan, with ``rows_of(stage)`` at each hole; called once a stage."""
        made: dict[str, DataFrame] = {}
        plan = self._plan
        for hole in self._holes:
            if hole.stage not in made:
                made[hole.stage] = rows_of(hole.stage)
            frame = made[hole.stage]
            new = leaf(frame.sparkSession, hole.leaf.output(), computed_rows(frame))
            if self._graft is not None:
                plan = self._graft.onto(new)
            else:
                plan = replace_leaf(self._spark, plan, hole.leaf, new)
        return of_rows(next(iter(made.values())).sparkSession, plan)
