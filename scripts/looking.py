"""Measures the cost of looking at a job: the page on a long journal, and a job that is looked at.

``looking.py page`` needs Chromium and ``pip install playwright``. ``looking.py job`` needs Java; give
``--browser`` to have Chromium show the page on the same machine. ``looking.py viewers`` has many clients
ask as tabs do. All print their figures as JSON, and
``looking.py sum FILE...`` puts several runs of ``job`` together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
PAGE, EXPORTER, DRIVER = 19096, 19095, 19094
"""Ports of the page, of `headgate exporter` and of the driver's own metrics."""

SETTLE_S = 2.0
"""Time after a change of turns that belongs to neither."""


def long_journal(path: Path, sample: Path, hours: float) -> tuple[dict[str, Any], int]:
    """Write a journal of a batch a second, made of the lines of a recorded journal that has ended now.

    Returns
    -------
    tuple
        A batch's line, and the step of the last batch.
    """
    lines = [json.loads(line) for line in sample.read_text().splitlines()]
    start = next(line for line in lines if line["event"] == "start")
    batches = [line for line in lines if line["event"] == "batch"]
    others = [line for line in lines if line["event"] in {"decision", "assignment", "applied"}]
    seconds = round(hours * 3600)
    began_ms = round(time.time() * 1000) - 1000 * seconds
    path.parent.mkdir(parents=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(start | {"at_ms": began_ms}, separators=(",", ":")) + "\n")
        for step in range(seconds):
            batch = batches[step % len(batches)] | {"step": step, "at_ms": began_ms + 1000 * step}
            if batch.get("slo"):
                met = {"windows": step, "windows_met": step - step // 50}
                batch["slo"] = batch["slo"] | met | {"windows_of": {}}
            file.write(json.dumps(batch, separators=(",", ":")) + "\n")
            if others and step % 300 == 0:
                other = others[step // 300 % len(others)] | {"at_ms": batch["at_ms"]}
                file.write(json.dumps(other, separators=(",", ":")) + "\n")
    return batches[0], seconds - 1


@contextmanager
def command(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of headgate's meanwhile."""
    process = subprocess.Popen([sys.executable, "-m", "headgate.cli", *words])
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)


def fetched(port: int, path: str) -> bytes:
    """Return the answer of a server on this machine."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return bytes(answer.read())


def wait_for(port: int, path: str) -> bytes:
    """Return a server's first answer."""
    for _ in range(600):
        with suppress(OSError):
            return fetched(port, path)
        time.sleep(0.02)
    raise TimeoutError(port)


def memory_mb(process: int) -> float:
    """Return the resident memory of a process, in MB."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


@contextmanager
def browser_page(**options: Any) -> Iterator[Any]:
    """Open a tab of Chromium."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only who asks for it has it

    arguments = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--no-proxy-server"]
    arguments += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        yield chromium.new_page(viewport={"width": 1400, "height": 1000}, **options)
        chromium.close()


_FRAMES = """(seconds) => new Promise((done) => {
    const gaps = []; let before = performance.now(); const end = before + 1000 * seconds;
    const frame = (now) => { gaps.push(now - before); before = now;
        window.scrollTo(0, 300 * (1 + Math.sin(now / 500)));
        if (now < end) requestAnimationFrame(frame); else done(gaps.slice(1)); };
    requestAnimationFrame(frame); })"""


def measure_page(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Measure the page on a journal of some hours that goes on growing."""
    aside = work.with_name(work.name + "-aside")
    batch, step = long_journal(
        aside / "headgate" / "journal.jsonl", arguments.sample, arguments.hours
    )
    journal = work / "job" / "headgate" / "journal.jsonl"
    size = (aside / "headgate" / "journal.jsonl").stat().st_size
    result: dict[str, Any] = {"journal_mb": round(size / 1e6, 1)}
    ended = threading.Event()

    def grow() -> None:
        number = step
        while not ended.wait(1.0):
            number += 1
            line = batch | {"step": number, "at_ms": round(time.time() * 1000)}
            with open(journal, "a", encoding="utf-8") as file:
                file.write(json.dumps(line, separators=(",", ":")) + "\n")

    with command("ui", str(work), "--listen", f"127.0.0.1:{PAGE}") as server, browser_page() as tab:
        wait_for(PAGE, "/static/page.css")
        began_s = time.monotonic()
        aside.rename(work / "job")  # a server reads what it has when it starts, before anybody asks
        threading.Thread(target=grow, daemon=True).start()
        tab.goto(f"http://127.0.0.1:{PAGE}/")
        tab.wait_for_selector(".verdict", timeout=120_000)
        result["first_viewer_s"] = round(time.monotonic() - began_s, 2)
        result["server_mb"] = round(memory_mb(server.pid))
        again = []
        for _ in range(5):
            tab.reload()
            tab.wait_for_selector(".verdict")
            again.append(
                tab.evaluate(
                    "[performance.getEntriesByName('first-contentful-paint')[0].startTime, "
                    "performance.now()]"
                )
            )
        result["first_paint_ms"] = round(statistics.median(paint for paint, _ in again))
        result["verdict_ms"] = round(statistics.median(seen for _, seen in again))
        (entry,) = json.loads(fetched(PAGE, "/api/journals"))
        result["answer_kb"] = round(len(fetched(PAGE, f"/api/query/{entry['id']}")) / 1024)
        spent = []
        for _ in range(10):
            began_s = time.monotonic()
            fetched(PAGE, f"/api/query/{entry['id']}")
            spent.append(1000 * (time.monotonic() - began_s))
        result["answer_ms"] = round(statistics.median(spent))
        devtools = tab.context.new_cdp_session(tab)
        heaps = []
        for part in range(2):
            devtools.send("HeapProfiler.collectGarbage")
            heaps.append(tab.evaluate("performance.memory.usedJSHeapSize") / 2**20)
            if not part:
                gaps = sorted(tab.evaluate(_FRAMES, arguments.seconds))
        result["heap_mb"] = [round(heap, 1) for heap in heaps]
        result["frames_per_s"] = round(1000 * len(gaps) / sum(gaps), 1)
        result["frame_ms_p50_p99_max"] = [
            round(gaps[int(len(gaps) * share)], 1) for share in (0.5, 0.99)
        ] + [round(gaps[-1], 1)]
        result["server_mb_after"] = round(memory_mb(server.pid))
        ended.set()
    return result


async def _view(port: int, names: list[str], end_s: float, spent_s: list[float]) -> None:
    """Ask as a tab does, on one connection: for the list and one query, every two seconds."""
    await asyncio.sleep(2 * random.random())
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    query = random.choice(names)
    while time.monotonic() < end_s:
        for path in ("/api/journals", f"/api/query/{query}"):
            began_s = time.monotonic()
            writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert head.startswith(b"http/1.1 200"), head
            await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r")[0]))
            spent_s.append(time.monotonic() - began_s)
        await asyncio.sleep(2.0)
    writer.close()


def measure_viewers(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Measure what many viewers get: half of one query, half of twenty others."""
    for job in range(21):
        place = work / f"job-{job}" / "headgate" / "journal.jsonl"
        long_journal(place, arguments.sample, arguments.hours if job == 0 else 0.1)
    size = sum(path.stat().st_size for path in work.rglob("journal.jsonl"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with command("ui", str(work), "--listen", f"127.0.0.1:{PAGE}") as server:
        wait_for(PAGE, "/static/page.css")
        entries = json.loads(fetched(PAGE, "/api/journals"))
        first = next(e["id"] for e in entries if e["place"].endswith("job-0"))
        others = [e["id"] for e in entries if e["id"] != first]
        spent_s: list[float] = []

        async def view() -> None:
            end_s = time.monotonic() + arguments.seconds
            groups = ([first], others)
            views = (_view(PAGE, groups[n % 2], end_s, spent_s) for n in range(arguments.viewers))
            await asyncio.gather(*views)

        began_s, used_s = time.monotonic(), cpu_s(server.pid)
        asyncio.run(view())
        took_s = time.monotonic() - began_s
        io = Path(f"/proc/{server.pid}/io").read_text(encoding="utf-8").split()
        return {
            "viewers": arguments.viewers,
            "requests_per_s": round(len(spent_s) / took_s),
            "answer_ms_p50": round(1e3 * statistics.median(spent_s)),
            "answer_ms_p99": round(1e3 * sorted(spent_s)[int(0.99 * len(spent_s))]),
            "cores": round((cpu_s(server.pid) - used_s) / took_s, 2),
            "server_mb": round(memory_mb(server.pid)),
            "journals_mb": round(size / 2**20, 1),
            "read_mb": round(int(io[1]) / 2**20, 1),
        }


def look(arguments: argparse.Namespace) -> dict[str, Any]:
    """Look at a job in every other turn, from a process of its own; return when the turns were."""
    turns: list[list[Any]] = []
    end_s = time.time() + arguments.seconds
    (entry,) = json.loads(fetched(PAGE, "/api/journals"))
    while time.time() < end_s:
        looks = len(turns) % 4 in {1, 2}  # A B B A, so that a job that gets quicker favours neither
        began_s, used_s = time.time(), cpu_s(arguments.driver)
        with browser_page() if looks and arguments.browser else nothing() as tab:
            if tab is not None:
                tab.goto(f"http://127.0.0.1:{PAGE}/")
            while time.time() < began_s + arguments.turn:
                again_s = time.time() + 1.0
                if looks:
                    fetched(DRIVER, "/metrics")
                    fetched(EXPORTER, "/metrics")
                if looks and tab is None:  # twice as often as a tab asks
                    fetched(PAGE, "/api/journals")
                    fetched(PAGE, f"/api/query/{entry['id']}")
                wait_s = max(0.0, again_s - time.time())
                if tab is None:
                    time.sleep(wait_s)
                else:
                    tab.wait_for_timeout(1000 * wait_s)
        used = (cpu_s(arguments.driver) - used_s) / (time.time() - began_s)
        turns.append([began_s + SETTLE_S, time.time(), looks, used])
    return {"turns": turns}


def cpu_s(process: int) -> float:
    """Return the processor time that a process has used, in s."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@contextmanager
def nothing() -> Iterator[None]:
    """Open nothing."""
    yield None


def measure_job(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Measure one job's batches in turns: with page, exporter and scrapes, and without."""
    import headgate as hg  # noqa: PLC0415 - the page needs no Spark
    from headgate_demo.spark import queries, sources  # noqa: PLC0415

    checkpoint = work / "ck"
    spark = hg.session(master="local[2]")
    sources.register(spark)
    query = (
        hg.writeStream(queries.q5(spark, rate=str(arguments.rate))).format("noop")
        .queryName("looked-at").option("checkpointLocation", str(checkpoint))
        .option("headgate.arrival", "scheduled").slo("mean < 5 s over 1 s").slots(2)
        .option("headgate.metrics", f"127.0.0.1:{DRIVER}").start()
    )  # fmt: skip
    try:
        time.sleep(arguments.warm)
        with (
            command("ui", str(checkpoint), "--listen", f"127.0.0.1:{PAGE}"),
            command("exporter", str(checkpoint), "--listen", f"127.0.0.1:{EXPORTER}"),
        ):
            wait_for(PAGE, "/api/journals")
            wait_for(EXPORTER, "/metrics")
            words = [
                "--seconds",
                arguments.seconds,
                "--turn",
                arguments.turn,
                "--driver",
                os.getpid(),
            ]
            words += ["--browser"] if arguments.browser else []
            looked = subprocess.run(
                [sys.executable, __file__, "look", *map(str, words)],
                stdout=subprocess.PIPE, check=True,
            )  # fmt: skip
    finally:
        query.stop()
        spark.stop()
    lines = (checkpoint / "headgate" / "journal.jsonl").read_text().splitlines()
    batches = [e for e in map(json.loads, lines) if e["event"] == "batch"]
    spent: dict[bool, list[float]] = {False: [], True: []}
    used: dict[bool, list[float]] = {False: [], True: []}
    counted = 0
    for began_s, end_s, looks, share in json.loads(looked.stdout)["turns"]:
        inside = [
            b["duration_ms"]
            for b in batches
            if began_s * 1000 <= b["at_ms"] - b["duration_ms"] and b["at_ms"] <= end_s * 1000
        ]
        counted += len(inside)
        spent[looks].append(statistics.median(inside))
        used[looks].append(share)
    return {
        "batches": counted,
        "batch_ms": [round(statistics.fmean(spent[looks]), 1) for looks in (False, True)],
        "driver_cores": [round(statistics.fmean(used[looks]), 4) for looks in (False, True)],
        "pairs": [
            [round(a, 1), round(b, 1)] for a, b in zip(spent[False], spent[True], strict=False)
        ],
    }


def added(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Return the added share of batch time over pairs of turns, and its 95 % interval."""
    draw = random.Random(1)

    def share(chosen: list[tuple[float, float]]) -> float:
        return sum(b for _, b in chosen) / sum(a for a, _ in chosen) - 1

    drawn = sorted(share(draw.choices(pairs, k=len(pairs))) for _ in range(2000))
    return {
        "share": round(share(pairs), 4),
        "from": round(drawn[50], 4),
        "to": round(drawn[1949], 4),
    }


def main() -> None:
    """Measure what is named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["page", "job", "viewers", "look", "sum"])
    parser.add_argument("results", nargs="*", type=Path, help="of sum: what job printed")
    sample = HERE / "tests" / "report" / "incidents" / "dead.jsonl"
    parser.add_argument("--sample", type=Path, default=sample, help="a recorded journal")
    parser.add_argument("--hours", type=float, default=8.0, help="of journal")
    parser.add_argument("--seconds", type=float, default=60.0, help="of frames, or of turns")
    parser.add_argument("--warm", type=float, default=20.0, help="seconds before the first turn")
    parser.add_argument("--turn", type=float, default=6.0, help="seconds of a turn")
    parser.add_argument("--rate", type=int, default=10_000, help="records a second")
    parser.add_argument("--driver", type=int, help="of look: the process of the job")
    parser.add_argument("--viewers", type=int, default=1_000, help="of viewers: how many")
    parser.add_argument("--browser", action="store_true", help="show the page in Chromium here")
    arguments = parser.parse_args()
    if arguments.what == "look":
        sys.stdout.write(json.dumps(look(arguments)) + "\n")
        return
    if arguments.what == "sum":
        lines = [json.loads(path.read_text().splitlines()[-1]) for path in arguments.results]
        pairs = [(a, b) for line in lines for a, b in line["pairs"]]
        sys.stdout.write(json.dumps({"pairs": len(pairs), **added(pairs)}) + "\n")
        return
    measure = {"page": measure_page, "job": measure_job, "viewers": measure_viewers}[arguments.what]
    with tempfile.TemporaryDirectory(prefix="headgate-looking-") as work:
        sys.stdout.write(json.dumps(measure(arguments, Path(work))) + "\n")


if __name__ == "__main__":
    main()
