"""A program that runs a query into an installed sink until its input ends or it is killed.

Arguments: the folder with ``events``, where its output goes too; where its checkpoint lies; its format.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headgate as hg


def per_window(events: DataFrame) -> DataFrame:
    """Count per window and key; a row that is put out twice is seen."""
    events = events.withWatermark("t", "1 second")
    counts = events.groupBy("k", F.window("t", "10 seconds")).agg(F.count("*").alias("n"))
    return counts.select("k", F.col("window.start").cast("long").alias("start"), "n")


def main() -> None:
    folder, checkpoint, name = sys.argv[1:]
    spark = hg.session(master="local[2]", name="killed")
    reader = spark.readStream.schema("k int, t timestamp").option("maxFilesPerTrigger", 1)
    made = hg.writeStream(per_window(reader.json(f"{folder}/events"))).format(name).slots(start=2)
    made = made.option("path", f"{folder}/out.db").option("table", "out")
    if checkpoint.startswith("sqlite:"):
        made = made.option("headgate.store.directory", folder)
    made = made.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    made.start().awaitTermination()


if __name__ == "__main__":
    main()
