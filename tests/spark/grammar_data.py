"""Input of generated queries: two streams of three files, and two tables.

Values are such that any two right answers are equal: doubles are quarters, so that sums are exact in any
order, and what was sent twice is the same in all columns. The last file of each stream holds one record
far behind all others, which closes everything; see `LONERS`.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import written
from pyspark.sql import DataFrame
from written import LAST, START

FILES, ROWS, FILE_S = 3, 24, 60
OVERLAP_S = 2
"""So much older than the newest record of the file before may records of a file be."""

EVENTS = (
    "id bigint, ts timestamp, user string, device string, action string, value double, "
    "amount decimal(12,2), ok boolean, born date, tags array<string>, attrs map<string,string>, "
    "place struct<city: string, zip: int>, payload string"
)
CLICKS = "click_id bigint, click_ts timestamp, click_user string, ad bigint, cost double"
LONERS = {
    "events": {
        "user": "eve",
        "device": "d9",
        "action": "view",
        "value": 1.0,
        "tags": ["a"],
        "payload": '{"temp": 1.0, "unit": "C"}',
    },
    "clicks": {"click_user": "kim", "ad": 99},
}
"""What closes everything passes all filters that stand below an operator, and meets nothing."""
USERS = ["ann", "bob", "cy", "dee"]


def write(folder: Path, seed: int = 1) -> None:
    """Write the files of both streams, in the order in which they come."""
    rng = random.Random(seed)
    for name, row in (("events", _event), ("clicks", _click)):
        (folder / name).mkdir(parents=True)
        before: list[dict[str, Any]] = []
        for file in range(FILES):
            times = [
                START + timedelta(seconds=file * FILE_S + rng.random() * FILE_S)
                for _ in range(ROWS)
            ]
            rows = [row(rng, file * ROWS + i, at) for i, at in enumerate(times)]
            # sent again: in the same file, and just behind the end of the one before
            rows += rng.sample(rows, 3)
            edge = START + timedelta(seconds=file * FILE_S - OVERLAP_S)
            rows += [old for old in before if _time(old) >= edge]
            before = rows[:ROWS]
            rng.shuffle(rows)
            if file == FILES - 1:
                number = {"events": 10_000, "clicks": 20_000}[name]
                rows.append({**row(rng, number, LAST), **LONERS[name]})
            path = folder / name / f"{file}.json"
            path.write_text("\n".join(map(json.dumps, rows)))
            os.utime(path, (1_000_000_000 + file, 1_000_000_000 + file))


def _time(row: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(row.get("ts") or row["click_ts"])


def _event(rng: random.Random, number: int, at: datetime) -> dict[str, Any]:
    value = rng.randint(-40, 400) / 4
    made = {
        "id": number,
        "ts": at.isoformat(),
        "user": rng.choice([*USERS, None]),
        "device": rng.choice(["d1", "d2", "d3"]),
        "action": rng.choice(["view", "buy", "cart"]),
        "value": rng.choice([value, value, value, None]),
        "amount": rng.randint(-500, 100_000) / 100,
        "ok": rng.choice([True, False, None]),
        "born": rng.choice(["1969-12-31", "2000-02-29", None]),
        "tags": rng.choice([None, [], ["a"], ["a", "b"], ["b", None, "c"]]),
        "attrs": rng.choice([None, {}, {"k": "v"}, {"k": "w", "z": "v"}]),
        "place": rng.choice([None, {"city": "Rome", "zip": 7}, {"city": None, "zip": 8}]),
    }
    unit = rng.choice(["C", "F"])
    made["payload"] = rng.choice([json.dumps({"temp": value, "unit": unit}), "{not json"])
    return made


def _click(rng: random.Random, number: int, at: datetime) -> dict[str, Any]:
    return {
        "click_id": number,
        "click_ts": at.isoformat(),
        "click_user": rng.choice([*USERS, None]),
        "ad": rng.randint(0, 4),
        "cost": rng.randint(0, 40) / 4,
    }


@dataclass(frozen=True)
class Given(written.Given):
    """What a generated query may read."""

    EVENTS: ClassVar[str] = EVENTS
    CLICKS: ClassVar[str] = CLICKS

    @property
    def users(self) -> DataFrame:
        """A table of users, and of other words that queries meet; of some it knows nothing."""
        return self.spark.sql(
            "SELECT * FROM VALUES ('ann', 'gold', 1), ('bob', 'silver', 2), ('cy', 'gold', 3), "
            "('zed', 'iron', 4), ('d1', 'gold', 2), ('D2', 'silver', 1), ('buy', 'gold', 3), "
            "('low', 'iron', 1), ('Rome', 'gold', 4), ('eve', 'iron', 5) AS t(name, tier, level)"
        )

    @property
    def devices(self) -> DataFrame:
        """A table of devices."""
        return self.spark.sql(
            "SELECT * FROM VALUES ('d1', 'hall'), ('d2', 'roof'), ('d9', 'loft') AS t(device, room)"
        )
