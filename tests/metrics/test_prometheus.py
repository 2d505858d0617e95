"""A real Prometheus scrapes the exporter, knows every expression of the board, and fires the alerts."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from journals import SLO, START, batch, write

from headgate.metrics.board import PANELS, board
from headgate.metrics.exporter import JournalMetrics
from headgate.metrics.families import NAMES
from headgate.metrics.rules import text

pytestmark = pytest.mark.slow

WAIT_S = 60.0


@pytest.fixture(scope="module")
def binaries() -> None:
    """Prometheus and promtool, of Debian's package where they are not there yet."""
    if shutil.which("promtool") and shutil.which("prometheus"):
        return
    if os.getuid() != 0 or not shutil.which("apt-get"):
        pytest.skip("prometheus is not there, and only root can install Debian's package of it")
    install = ["apt-get", "install", "-q", "-y", "--no-install-recommends", "prometheus"]
    for command in (["apt-get", "update", "-q"], install):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"prometheus cannot be installed: {done.stderr[-200:]}")


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
          description: headgate diagnose CHECKPOINT says what limits it; see docs/guide.md.
"""


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


@pytest.fixture
def prometheus(binaries: None, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Prometheus' address, and the journal that it scrapes once a second."""
    journal = write(tmp_path / "journal.jsonl", [START, batch(0)])
    serving = JournalMetrics([tmp_path]).serve("127.0.0.1", 0)
    (tmp_path / "rules.yml").write_text(text())
    (tmp_path / "prometheus.yml").write_text(f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [rules.yml]
scrape_configs:
- job_name: headgate
  static_configs: [{{targets: ["127.0.0.1:{serving.port}"]}}]
""")
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml"]
    command += [f"--storage.tsdb.path={tmp_path}/tsdb", f"--web.listen-address={address}"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield address, journal
    finally:
        process.kill()
        process.wait()
        serving.close()


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
