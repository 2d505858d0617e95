"""A program that runs a query in real time until it is killed; its rows go to a file a step."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame
from real_time import totals

import headgate as hg
from headgate_demo.spark.sources import register


class Files:
    """Writes the rows of each step into a file of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)

    def __call__(self, frame: DataFrame, step: int) -> None:
        rows = [row.asDict() for row in frame.collect()]
        made = self.directory / f"{step}.tmp"
        made.write_text(json.dumps(rows))
        made.rename(self.directory / f"{step}.json")

    def __len__(self) -> int:
        return len(list(self.directory.glob("*.json")))

    def last(self) -> list[dict[str, int]]:
        """The last row of each key."""
        files = sorted(self.directory.glob("*.json"), key=lambda file: int(file.stem))
        rows = [row for file in files for row in json.loads(file.read_text())]
        return list({row["k"]: row for row in rows}.values())


def main() -> None:
    work = Path(sys.argv[1])
    spark = hg.session(master="local[2]", name="killed")
    register(spark)
    made = hg.writeStream(totals()(spark)).foreachBatch(Files(work / "out")).outputMode("update")
    made = made.option("checkpointLocation", str(work / "checkpoint")).slots(start=2)
    made = made.option("headgate.experimental.realTime", "true").trigger(realTime="5 minutes")
    query = made.start()
    while query.isActive:
        (work / "processes").write_text(json.dumps([os.getpid(), *query.processes.values()]))
        time.sleep(0.1)


if __name__ == "__main__":
    main()
