"""A real Prometheus scrapes the exporter, knows every expression of the board, and fires the alerts."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from journals import SLO, START, batch, write

from headgate.metrics.board import PANELS, board
from headgate.metrics.exporter import JournalMetrics
from headgate.metrics.families import NAMES
from headgate.metrics.rules import WINDOWS, text

pytestmark = pytest.mark.slow

WAIT_S = 60.0


def installed(package: str, *programs: str) -> None:
    """Install a package of Debian's where its programs are not there yet."""
    if all(map(shutil.which, programs)):
        return
    if os.getuid() != 0 or not shutil.which("apt-get"):
        pytest.skip(f"{package} is not there, and only root can install Debian's package of it")
    install = ["apt-get", "install", "-q", "-y", "--no-install-recommends", package]
    for command in (["apt-get", "update", "-q"], install):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"{package} cannot be installed: {done.stderr[-200:]}")


@pytest.fixture(scope="module")
def binaries() -> None:
    """Prometheus and promtool."""
    installed("prometheus", "promtool", "prometheus")


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def of_queries(met: str) -> str:
    """Series of two hours with a value each 30 s: 100 windows more, and as many met as `met` says."""
    return f"""
  - interval: 30s
    input_series:
    - series: headgate_slo_windows_total{{query="clicks", operator="a"}}
      values: 0+100x240
    - series: headgate_slo_windows_met_total{{query="clicks", operator="a"}}
      values: {met}
    - series: headgate_slo_objective_ratio{{query="clicks"}}
      values: WANTED+0x240
"""


ALERT = """
    alert_rule_test:
    - eval_time: 110m
      alertname: HeadgateSLOBurn
      exp_alerts:"""
FIRES = """
      - exp_labels:
          severity: page
          query: clicks
          sloth_id: headgate-clicks
          sloth_service: clicks
        exp_annotations:
          summary: Query clicks uses up the error budget of its SLO
          description: headgate diagnose CHECKPOINT names what limits the query; see RUNBOOK.
""".replace("RUNBOOK", "docs/runbook.md#headgatesloburn")


@pytest.mark.parametrize(
    ("wanted", "met", "fires"),
    [("0.99", "0+99x240", False), ("0.99", "0+80x240", True), ("0.9", "0+5x240", True)],
    ids=["met", "missed", "missed with a large budget"],
)
def test_the_page_fires_when_the_budget_burns_and_not_before(
    binaries: None, tmp_path: Path, wanted: str, met: str, *, fires: bool
) -> None:
    (tmp_path / "rules.yml").write_text(text())
    alerts = ALERT + (FIRES + FIRES.replace("page", "ticket") if fires else " []\n")
    tests = of_queries(met).replace("WANTED", wanted) + alerts
    (tmp_path / "test.yml").write_text(f"rule_files: [rules.yml]\ntests:{tests}")
    promtool("check", "rules", str(tmp_path / "rules.yml"))
    promtool("test", "rules", str(tmp_path / "test.yml"))


def ask(address: str, path: str, **parameters: str) -> Any:
    """The data of an answer of Prometheus' API."""
    query = urllib.parse.urlencode(parameters)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on loopback
    try:
        with opener.open(f"http://{address}/api/v1/{path}?{query}", timeout=10) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        pytest.fail(f"{parameters}: {error.read().decode()}")


@contextlib.contextmanager
def running(directory: Path, program: str, *arguments: str) -> Iterator[None]:
    """Run a server, which is killed at the end."""
    with (directory / f"{program}.log").open("w") as log:
        process = subprocess.Popen([program, *arguments], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def scraping(directory: Path, rules: str, more: str = "") -> Iterator[tuple[str, Path]]:
    """Run a Prometheus; yield its address, and the journal that it scrapes once a second."""
    journal = write(directory / "journal.jsonl", [START, batch(0)])
    serving = JournalMetrics([directory]).serve("127.0.0.1", 0)
    (directory / "rules.yml").write_text(rules)
    (directory / "prometheus.yml").write_text(f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [rules.yml]
{more}
scrape_configs:
- job_name: headgate
  static_configs: [{{targets: ["127.0.0.1:{serving.port}"]}}]
""")
    address = f"127.0.0.1:{free_port()}"
    places = [f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/tsdb"]
    try:
        with running(directory, "prometheus", *places, f"--web.listen-address={address}"):
            yield address, journal
    finally:
        serving.close()


@pytest.fixture
def prometheus(binaries: None, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Prometheus' address, and the journal that it scrapes."""
    with scraping(tmp_path, text()) as found:
        yield found


class Receiver(http.server.BaseHTTPRequestHandler):
    """Keeps what Alertmanager sends."""

    got: ClassVar[list[tuple[str, str]]] = []

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.got.extend((a["labels"]["severity"], a["status"]) for a in sent["alerts"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def alerted(binaries: None, tmp_path: Path) -> Iterator[tuple[Path, list[tuple[str, str]]]]:
    """A journal, and what Alertmanager tells a receiver of it: severities, firing or resolved.

    The windows of the rules are seconds, so that a test need not last for hours.
    """
    installed("prometheus-alertmanager", "prometheus-alertmanager")
    receiver = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    (tmp_path / "alertmanager.yml").write_text(f"""
route: {{receiver: on-call, group_by: [severity], group_wait: 0s, group_interval: 1s}}
receivers:
- name: on-call
  webhook_configs: [{{url: "http://127.0.0.1:{receiver.server_port}/"}}]
""")
    address, rules = f"127.0.0.1:{free_port()}", text()
    for window, seconds in zip(WINDOWS, (5, 5, 10, 5, 10, 10, 10), strict=True):
        rules = rules.replace(f"[{window}]", f"[{seconds}s]")
    alertmanager = f"""
alerting:
  alertmanagers:
  - static_configs: [{{targets: ["{address}"]}}]
"""
    places = [f"--config.file={tmp_path}/alertmanager.yml", f"--storage.path={tmp_path}/am"]
    listen = [f"--web.listen-address={address}", "--cluster.listen-address="]
    with (
        running(tmp_path, "prometheus-alertmanager", *places, *listen),
        scraping(tmp_path, rules, alertmanager) as (_, journal),
    ):
        yield journal, Receiver.got
    receiver.shutdown()
    receiver.server_close()


@pytest.mark.thorough
def test_an_alert_fires_when_the_slo_is_missed_and_resolves(
    alerted: tuple[Path, list[tuple[str, str]]],
) -> None:
    journal, got = alerted
    step = judged = met = 0

    def go_on(share: float, wanted: tuple[str, str]) -> None:
        nonlocal step, judged, met
        end = time.monotonic() + 2 * WAIT_S
        while wanted not in got and time.monotonic() < end:
            step, judged, met = step + 1, judged + 100, met + round(100 * share)
            write(
                journal,
                [batch(step, slo=dataclasses.replace(SLO, windows_of={"a": (judged, met)}))],
            )
            time.sleep(0.5)

    go_on(0.5, ("page", "firing"))
    assert ("page", "firing") in got
    go_on(1.0, ("page", "resolved"))
    assert ("page", "resolved") in got


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_every_expression_of_the_board_has_an_answer(prometheus: tuple[str, Path]) -> None:
    address, journal = prometheus
    expressions = {
        expression.replace('query=~"$query"', 'query=~".*"')
        for panel in PANELS
        if panel.title != "Utility of a fleet"
        for legend, expression in panel.curves.items()
        if not legend.endswith("wanted")  # of a query whose policy decided something
    }
    expressions -= {e for e in expressions if "decisions" in e}
    assert len(expressions) > len(PANELS)
    end, step, unanswered = time.monotonic() + WAIT_S, 1, expressions
    while unanswered and time.monotonic() < end:
        judged = dataclasses.replace(SLO, windows_of={"a": (100 + step, 90 + step)})
        write(journal, [batch(step, slo=judged)])
        step += 1
        time.sleep(1)
        with contextlib.suppress(OSError):
            unanswered = {e for e in unanswered if not ask(address, "query", query=e)["result"]}
    assert unanswered == set()
    known = set(ask(address, "label/__name__/values"))
    assert {"headgate_batches_total", "slo:error_budget:ratio"} <= known
    assert {name for name in known if name.startswith("headgate_")} <= {
        *NAMES,
        *(f"{name}{end}" for name in NAMES for end in ("_bucket", "_count", "_sum", "_created")),
    }
    rules = ask(address, "rules")["groups"]
    assert {rule["health"] for group in rules for rule in group["rules"]} == {"ok"}


def test_the_board_names_its_prometheus_and_its_queries() -> None:
    made = board()
    assert [panel["title"] for panel in made["panels"]] == [panel.title for panel in PANELS]
    assert {variable["name"] for variable in made["templating"]["list"]} == {"source", "query"}
    assert len({(p["gridPos"]["x"], p["gridPos"]["y"]) for p in made["panels"]}) == len(PANELS)
