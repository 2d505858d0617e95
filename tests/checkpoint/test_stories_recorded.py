"""Drawn courses of events for each part of a checkpoint: each file and each sentence as recorded."""

from __future__ import annotations

import copy
import json
import random
import re
import types
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headgate.checkpoint import changelog, command_files, epochs, shipping
from headgate.checkpoint import manifest as manifests
from headgate.checkpoint.command_files import Command, CommandFiles
from headgate.checkpoint.identity import refuse_another
from headgate.checkpoint.manifest import BlobEntry, FileEntry, Heads, Manifest, SectionEntry
from headgate.checkpoint.place import PosixFiles
from headgate.checkpoint.snapshots import due, steps_between
from headgate.core.errors import HeadgateError
from headgate.tables.ports import EMPTY_TOKEN, Section

Recorded = Callable[[str, Iterable[str]], None]
TOKENS = [f"{n:032x}" for n in range(1, 9)]


def told(do: Callable[[], Any], place: Path | str = "/nowhere") -> str:
    """Return what a call returns, or its error, without the place of a test."""
    try:
        answer = str(do())
    except (HeadgateError, FileExistsError) as error:
        answer = f"{type(error).__name__}: {error}"
    return answer.replace(str(place), "<ck>")


def tree(root: Path) -> dict[str, int]:
    """Return the length of each file, by its path."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return {path.relative_to(root).as_posix(): path.stat().st_size for path in files}


# --- Whose state it is --------------------------------------------------------------------------------

PARTS: dict[str, list[Any]] = {
    "kinds": [None, [], [[0, 0]], [[2, 4], [3, 0]], [[1, 0], [4, 0]]],
    "time": [[0, 0, 0], [10_000_000, 10_000_000, 0], [10_000_000, 2_500_000, 0], [5, 5, 1]],
    "aggregates": [None, [["MAX", [[0, 0]]]], [["SUM_DECIMAL", [[2, 4], [0, 0]]], ["COUNT", []]]],
    "kept": [[["FIRST", [[3, 0]]]], []],
    "sides": [None, [[[0, 0]], [[3, 0], [2, 2]]]],
    "comparisons": [None, [["a", "<"], ["b", ">"]], [["b", ">"], ["a", "<"]], [["a", "<"]]],
    "keys": [["k"], ["k", "s"]],
    "keep_us": [0, 2_500_000],
    "time_mode": ["EventTime", ""],
    "states": [
        None, {}, {"seen": [[], [["v", "bigint"]], False, False]},
        {"seen": [[["k", "string"]], [["v", "bigint"]], False, True]},
        {"seen": [[], [["v", "bigint"]], True, False], "last": [[], [["t", "date"]], False, False]},
    ],
}  # fmt: skip
SCHEMA = {"fields": [{"name": "k", "type": "string"}, {"name": "v", "type": {"type": "array"}}]}


def identity(dice: random.Random) -> dict[str, Any]:
    names = dice.choice([["a-0"], ["a-0"], ["a-0", "b-1"]])
    made: dict[str, Any] = {
        "key_groups": dice.choice([8, 8, 16]), "mode": dice.choice(["append", "append", "update"]),
        "operators": {name: {} for name in names},
    }  # fmt: skip
    for operator in made["operators"].values():
        for part in dice.sample(sorted(PARTS), 4):
            operator[part] = dice.choice(PARTS[part])
    if dice.random() < 0.3:
        made["stages"] = {"one": SCHEMA, "two": {"fields": SCHEMA["fields"][:1]}}
    if dice.random() < 0.6:
        meant = {"keys": ["k", "s"], "window": dice.choice(["", "window(at, '1 s')"])}
        made["meaning"] = {"version": 1, "operators": {name: dict(meant) for name in names}}
    return made


def test_what_differs_between_drawn_queries(recorded: Recorded) -> None:
    """Each query against itself with one to three parts that are another query's."""
    dice, lines = random.Random(21), []
    for number in range(150):
        old, other = identity(dice), identity(dice)
        new = copy.deepcopy(old)
        for _ in range(dice.randint(1, 3)):
            name = dice.choice(sorted(old["operators"]))
            part = dice.choice(sorted(PARTS))
            what = dice.choice(["part"] * 4 + ["meaning", "whole", "stages"])
            if what == "part":
                new["operators"].setdefault(name, {})[part] = dice.choice(PARTS[part])
            elif what == "stages":
                new["stages"] = {"one": SCHEMA, **dice.choice([{}, {"two": SCHEMA}])}
            elif what == "whole":
                new |= {key: other[key] for key in ("mode", "operators")}
            elif "meaning" in new:
                new["meaning"]["version"] = dice.choice([1, 1, 2])
                meant = new["meaning"]["operators"].setdefault(name, {})
                meant |= dice.choice(
                    [{"keys": ["s", "k"]}, {"keys": ["k", "t"]}, {"filter": "a"}, {}]
                )
        lines.append(f"{number} {told(lambda a=old, b=new: refuse_another(a, b, '/ck'))}")
    recorded("other-queries", lines)


# --- Manifests and changelogs -------------------------------------------------------------------------


def manifest() -> Manifest:
    ref = changelog.SectionRef(0, 2, 0, 1, 0, True, EMPTY_TOKEN, TOKENS[0])
    late = changelog.SectionRef(2, 1, 1, 0, 1, False, TOKENS[0], TOKENS[1])
    return Manifest(
        "job", 7, 9, 2, {"a-0": {"slots": 1}}, {"late_us": None, "evict_us": 5},
        {"a-0": Heads((TOKENS[0], TOKENS[1]), (7, 7))},
        {"a-0": {0: SectionEntry(0, ref, -1), 1: SectionEntry(1, late, 5)}},
        blobs=(BlobEntry(None, "b", 3, zlib.crc32(b"abc")), BlobEntry("x.arrow", None, 4, 5)),
        files=(FileEntry("output/x.out", 3, 4), FileEntry("sources/0", 1, 2)),
        engine={"sources": ["1"]}, previous="p", payloads={"b": b"abc", "c": b""},
    )  # fmt: skip


def test_manifests_of_which_a_field_was_changed(recorded: Recorded) -> None:
    """Resealed, so that no checksum tells; each value is in turn a few others, or gone."""
    raw, digest = manifests.encode(manifest())
    content, _ = manifests.unsealed(raw, "m")
    assert manifests.decode(raw, "m") == replace(manifest(), digest=digest)
    head, _, body = content.partition(b"\n")
    lines = [head.decode(), repr(body)]

    def places(value: Any, way: tuple[Any, ...] = ()) -> Iterable[tuple[Any, ...]]:
        if way:
            yield way
        if isinstance(value, dict | list):
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            for key, part in parts:
                yield from places(part, (*way, key))

    for way in list(places(json.loads(head))):
        found = []
        for new in (None, -1, 8, "../x", [], {}):
            changed = json.loads(head)
            part = changed
            for key in way[:-1]:
                part = part[key]
            part[way[-1]] = new
            line = json.dumps(changed, sort_keys=True, separators=(",", ":")).encode() + b"\n"
            spoiled, _ = manifests.sealed(line + body)
            said = told(lambda raw=spoiled: manifests.decode(raw, "m") and "read")
            # the rest is in the words of Python's release
            found.append("damaged" if "m is damaged (field" in said else said)
        lines.append(f"{'.'.join(map(str, way))}: {', '.join(found)}")
    recorded("changed-manifests", lines)


def test_drawn_sections_are_packed_as_narrow_as_they_fit(recorded: Recorded) -> None:
    dice, lines = random.Random(22), []
    ends = [0, 1, -1, 127, 128, -128, -129, 2**15 - 1, 2**15, -(2**15), 2**31 - 1, 2**31, 2**63 - 1]
    for number in range(40):
        sections, width = {}, dice.randint(1, 4)
        high = [dice.choice(ends) for _ in range(width)]
        for group in dice.sample(range(9), dice.randint(1, 3)):
            texts = [
                bytes([dice.randrange(256)]) * dice.randint(0, 3) for _ in range(dice.randint(0, 3))
            ]
            count = dice.randint(0, 3)
            rows = np.array(
                [[dice.choice([0, most]) for most in high] for _ in range(count)], np.int64
            )
            sections[group] = Section(
                TOKENS[0], TOKENS[1], group % 2 == 0, rows.reshape(count, width),
                np.cumsum([0, *map(len, texts)]).astype(np.int64),
                np.frombuffer(b"".join(texts), np.uint8), group,
            )  # fmt: skip
        blob, refs = changelog.encode(sections)
        opened = changelog.open_blob(blob)
        for group, section in sections.items():
            back = changelog.decode(opened, refs[group])
            assert all(np.array_equal(vars(back)[key], part) for key, part in vars(section).items())
        kinds = ["-" if word is None else str(word.dtype) for word in opened.words]
        ref = refs[next(reversed(sections))]
        moved = {
            name: getattr(ref, name) + 1 for name in ("row_count", "string_count", "row_start")
        }
        bad = [
            told(lambda k=k, v=v, ref=ref, o=opened: changelog.decode(o, ref._replace(**{k: v})))
            for k, v in [*moved.items(), ("row_start", -1), ("string_start", -1)]
        ]
        said = [text.partition("): ")[0] if "damaged" in text else "read" for text in bad]
        lines.append(f"{number} {list(sections)} {kinds} {said}")
    recorded("sections", lines)


def test_full_sections_are_due(recorded: Recorded) -> None:
    """Eight key groups of which some change in each step, for several intervals and turns."""
    lines = [
        f"{rows} rows, {changed:g} change, {groups} groups: {steps_between(rows, changed, groups)}"
        for rows in (0, 32_768, 1_000_000, 4_194_304)
        for changed in (0.0, 256.0, 512.0, 4096.0, 1e6)
        for groups in (1, 128, 256, 600)
    ]
    for every, turn in ((4, 1), (8, 2), (3, 4)):
        dice, steps, full = random.Random(every), [-1] * 8, [-1] * 8
        for step in range(40):
            groups = due(step, steps, full, every, turn)
            lines.append(f"{every} {turn} {step}: {groups}")
            for group in range(8):
                if dice.random() < 0.4 or group in groups:
                    steps[group] = step
            for group in groups:
                full[group] = step
    recorded("full-sections", lines)


# --- Requests to a query, and its journal -------------------------------------------------------------


class Shared(PosixFiles):
    """A directory that counts as a store."""

    shared = True


@pytest.mark.parametrize("files_of", [PosixFiles, Shared])
def test_requests_of_a_day(
    files_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    dice, lines, now = random.Random(23), [], [1_700_000_000.0]
    clock = types.SimpleNamespace(
        time=lambda: now[0], monotonic=lambda: now[0], time_ns=lambda: int(now[0] * 1e9)
    )
    monkeypatch.setattr(command_files, "time", clock)
    tokens = (f"{n:08x}" for n in range(999))
    monkeypatch.setattr(command_files.secrets, "token_hex", lambda _: next(tokens))
    root = tmp_path / "headgate"
    asker, asked = CommandFiles(files_of(root)), CommandFiles(files_of(root))
    lines.append(told(lambda: asker.ask(Command("freeze", "ann")), tmp_path))
    root.mkdir()
    ids: list[str] = []
    known: dict[str, str] = {}
    stray = (
        b"{", b"[]", b'{"act": "go"}', b'{"act": "stop", "by": 5, "reason": null}', b"\xff",
        b'{"act": "scale", "arguments": {"until_s": true}}', b'{"act": "scale", "arguments": 3}',
        b'{"act": "freeze", "arguments": {"until_s": 1e300}}', b" " * 65537,
        b'{"act": "stop"}'.ljust(65536),
    )  # fmt: skip

    def acts(step: int, request: str) -> dict[str, Callable[[], Any]]:
        return {
            "ask": lambda: ids.append(
                asker.ask(Command(dice.choice(command_files.ACTS), "a" * 501, "r", {"slots": step}))
            ),
            "done": lambda: asked.write_answer(
                request, dice.choice([None, "no.", "x" * 501]), "d" * step
            ),
            "refuse": lambda: asked.refuse(request, "it is odd."),
            "withdraw": lambda: asker.withdraw(request),
            "freeze": lambda: asked.freeze(dice.choice([None, -1.0, now[0], 2.5e11, 2.6e11])),
            "thaw": asked.thaw,
            "hold": lambda: asked.hold(dice.choice([{}, {"a": now[0]}, {"a": 1.0, "b": -1.0}])),
            "bad note": lambda: (root / f"control/{dice.choice(['frozen', 'held'])}").write_bytes(
                dice.choice([b"3", b"{", b'{"until_s": "x"}', b'{"a": null, "b": 2}'])
            ),
            "aside": asked.set_frozen_aside,
            "stray": lambda: (
                root
                / f"control/{dice.choice([f'{int(now[0] * 1e3):013d}-{step:08x}.json', 'x.json'])}"
            ).write_bytes(stray[step % len(stray)]),
            "bad answer": lambda: (root / f"control/{request}.done").write_bytes(
                dice.choice([b"[]", b"{", b'{"at_ms": 1.5, "detail": 3}'])
            ),
        }

    for step in range(90):
        now[0] += dice.choice([0.25, 1.0, 2.0, 7.0, 30_000.0])
        request = dice.choice(ids or ["1700000000000-0000ffff"])
        act = dice.choice(["ask"] * 5 + sorted(acts(step, request)))
        said = told(acts(step, request)[act], tmp_path)
        (root / "control").mkdir(exist_ok=True)
        lines.append(f"{step} +{now[0] - 1_700_000_000:g} s {act} {request[-4:]}: {said[:90]}")
        pending = asked.pending()
        for new in pending:
            if new.id not in known:
                text = new.problem or str(new.command).replace("a" * 500, "<a>")
                lines.append(f"    {known.setdefault(new.id, new.id)} {text[:120]}")
        lines.append(f"    {len(pending)} pending, {' '.join(one.id[-4:] for one in pending[-3:])}")
        asks = [partial(asker.answer, request), asked.frozen_until_s, asked.held_until_s]
        found = [told(each, tmp_path) for each in asks]
        lines.append(f"    {[text[:90] for text in found]} {len(asked.stops())} {asked.is_free()}")
    lines += [re.sub(r"damaged\S*", "damaged", str(tree(root)))]
    recorded(f"requests-{files_of.__name__.lower()}", lines)


def test_a_journal_is_shipped_by_drivers_that_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    """The pieces together are the whole lines of the newest driver, and so is what a reader has."""
    monkeypatch.setattr(shipping, "_EVERY_S", 3600.0)
    monkeypatch.setattr(shipping, "_PIECE_BYTES", 40)
    dice, lines, number = random.Random(24), [], 0
    store = Shared(tmp_path / "store")
    store.prepare([shipping.DIRECTORY])
    reader = shipping.JournalCopy(store, tmp_path / "copy")
    driver = None

    def shipped() -> bytes:
        return b"".join(store.get(f"journal/{n}") for n in sorted(store.names("journal")))

    for step in range(80):
        act = dice.choice(["write"] * 4 + ["ship"] * 3 + ["read"] * 2 + ["driver"])
        said: Any = ""
        if act == "driver" or driver is None:
            if driver is not None:
                driver.close()
                driver.close()
            number += 1
            local = tmp_path / f"journal-{number}"
            driver = shipping.resume_shipping(store, local)
            assert local.read_bytes() == shipped()
        elif act == "write":
            text = b"%d" % step + b"x" * dice.randint(0, 30) + b"\n" * dice.randint(0, 1)
            with open(local, "ab") as file:
                file.write(text)
        elif act == "ship":
            driver.ship()
        else:
            said = reader.refresh()
            assert shipped() == (tmp_path / "copy").read_bytes()
        written = local.read_bytes()
        assert written.startswith(shipped())
        assert act != "ship" or shipped() == written[: written.rfind(b"\n") + 1]
        pieces = [len(store.get(f"journal/{n}")) for n in sorted(store.names("journal"))]
        lines.append(
            f"{step} {act} {said} {pieces} {driver._at} {(tmp_path / 'copy').stat().st_size}"
        )
    driver.close()
    recorded("shipped", lines)


# --- Spark's log behind an epoch ----------------------------------------------------------------------


@pytest.mark.parametrize("begun", ["nothing", "batches", "the same batch", "newer"])
def test_what_is_written_into_sparks_log(
    begun: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    monkeypatch.setattr(epochs.uuid, "uuid4", lambda: "the-id")
    lines = []
    engines: list[Mapping[str, Any]] = [
        {}, {"real_time": {"next_watermark_us": 8_500}, "sources": ["o1", "o2"]},
        {"real_time": {"next_watermark_us": 8_500}, "sources": ['{"real_time_only": 1}']},
    ]  # fmt: skip
    for number, engine in enumerate(engines):
        for batch in (0, 1, 5):
            log = tmp_path / f"{number}-{batch}"
            log.mkdir()
            newest = {"nothing": -1, "batches": batch - 1, "the same batch": batch, "newer": 9}[
                begun
            ]
            for there in range(max(0, newest - 1), newest + 1):
                for kind, text in (
                    ("offsets", "v1\n{}\no\n77"),
                    ("commits", 'v1\n{"nextBatchWatermarkMs": 9}'),
                ):
                    (log / kind).mkdir(exist_ok=True)
                    (log / kind / str(there)).write_text(text)
            latest = Manifest(
                "job", 3, batch, 0, {}, {"evict_us": 7_000}, {}, {}, engine=dict(engine)
            )
            told_next = told(lambda log=log, m=latest: epochs.next_watermark_us(log, m))
            refused = told(lambda m=latest: epochs.check_batches_can_follow(m))
            epochs.write_log(log, latest)
            epochs.write_log(log, None)
            lines.append(f"{number} batch {batch}: next {told_next} us; {refused}")
            for path in sorted(path for path in log.rglob("*") if path.is_file()):
                lines.append(f"    {path.relative_to(log)}: {path.read_text()!r}")
    epochs.write_first_offsets(tmp_path, 2, '{"t": 1}')
    lines += [repr(epochs.first_offsets(tmp_path, number)) for number in (0, 2)]
    lines.append(repr((tmp_path / "sources/2/0").read_bytes()))
    recorded(f"behind-an-epoch-{begun.replace(' ', '-')}", lines)
