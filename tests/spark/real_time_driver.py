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
        rows = sorted(json.dumps(row.asDict()) for row in frame.collect())
        text, place = f"[{','.join(rows)}]", self.directory / f"{step}.json"
        if place.exists() and place.read_text() != text:
            (self.directory / f"{step}.differs").write_text(text)
        made = self.directory / f"{step}.tmp"
        made.write_text(text)
        made.rename(place)

    def __len__(self) -> int:
        return len(list(self.directory.glob("*.json")))

    @property
    def differing(self) -> list[str]:
        """Steps that came again with other rows."""
        return [file.stem for file in self.directory.glob("*.differs")]

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
    made = made.trigger(realTime="5 minutes")
    query = made.start()
    wanted = 2
    while query.isActive:
        found = work / "processes.tmp"
        found.write_text(json.dumps({"driver": os.getpid(), **query.processes}))
        found.rename(work / "processes")
        if len(sys.argv) > 2 and query.assignment()["aggregate-0"].slots == wanted:
            wanted = 5 - wanted  # it changes all the time
            query.scale(wanted)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
