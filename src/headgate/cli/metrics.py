"""Defines the commands that show journals elsewhere: in Prometheus, in Grafana, in a browser."""

from __future__ import annotations

import json
import secrets
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate import scenario as scenarios
from headgate.cli.answer import EXIT_CODES, Debug, Json, answer
from headgate.cli.commands import app
from headgate.cli.input import checkpoint_place
from headgate.core.errors import ConfigError
from headgate.core.input import host_and_port, is_loopback, shown
from headgate.metrics import board, collect, rules

_ADDRESS = "127.0.0.1:9095"
_PLACES = "Checkpoints, or directories that have some; on a store, checkpoints."


@app.command(epilog=EXIT_CODES)
def exporter(
    places: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help=_PLACES, parser=checkpoint_place),
    ],
    listen: Annotated[
        str, typer.Option(help="Host and port. Whoever can reach them reads the metrics.")
    ] = _ADDRESS,
    once: Annotated[bool, typer.Option("--once", help="Print the metrics, and end.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Serve the metrics of queries and fleets to Prometheus, from their journals alone."""

    def work() -> dict[str, Any]:
        metrics = collect([scenarios.journal_place(place) for place in places])
        if once:
            return {"metrics": metrics.text(), "broken": metrics.broken}
        host, port = host_and_port(listen, "--listen")
        serving = metrics.serve(host, port)
        where = f"http://{host}:{serving.port}/metrics"
        typer.echo(f"headgate: metrics at {where}; Ctrl-C ends", err=True)
        _until_ended(threading.Event().wait)
        serving.close()
        return {"metrics": "", "broken": metrics.broken}

    answer(work, _exported, as_json=as_json, debug=debug)


@app.command(epilog=EXIT_CODES)
def ui(
    places: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR...", help=_PLACES, show_default=".", parser=checkpoint_place),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="Host and port. Whoever can reach them sees the page.")
    ] = "127.0.0.1:9096",
    control: Annotated[
        bool,
        typer.Option("--control", help="Let whoever has the printed address give commands, too."),
    ] = False,
    debug: Debug = False,
) -> None:
    """Show queries and fleets on a page in the browser, from their journals alone."""

    def work() -> dict[str, Any]:
        shelf, serve = _page(places or [Path()])
        host, port = host_and_port(listen, "--listen")
        if control and not is_loopback(host):
            where = f'--control with --listen "{shown(listen, 60)}"'
            msg = f"{where} would let other machines give commands; use 127.0.0.1."
            raise ConfigError(msg)
        # a browser sends the part behind # to nobody
        token = secrets.token_urlsafe(32) if control else None
        where = f"http://{host}:{port}/" + (f"#token={token}" if token else "")
        typer.echo(f"headgate: the page is at {where}; Ctrl-C ends", err=True)
        _until_ended(lambda: serve(shelf, host, port, token))
        return {}

    answer(work, lambda _: [], as_json=False, debug=debug)


@app.command("rules", epilog=EXIT_CODES)
def print_rules(as_json: Json = False, debug: Debug = False) -> None:
    """Print recording rules and alerts for Prometheus: burn rate of the SLO, silence, lag."""
    answer(
        lambda: {"rules": rules.text()},
        lambda r: r["rules"].splitlines(),
        as_json=as_json,
        debug=debug,
    )


@app.command("board", epilog=EXIT_CODES)
def print_board(as_json: Json = False, debug: Debug = False) -> None:
    """Print a board for Grafana as JSON; import it, and choose a Prometheus."""
    answer(
        board.board, lambda r: json.dumps(r, indent=2).splitlines(), as_json=as_json, debug=debug
    )


def _until_ended(work: Callable[[], object]) -> None:
    """Do endless work until Ctrl-C or SIGTERM; then return, so that journals' copies are deleted."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def _page(places: list[Path]) -> tuple[Any, Any]:
    """Return the journals at some places, and the function that serves their page."""
    try:
        from headgate.ui.app import serve  # noqa: PLC0415 - an extra
        from headgate.ui.shelf import Shelf  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        msg = (
            'the page needs starlette and uvicorn: in a checkout of headgate, pip install ".[ui]".'
        )
        raise ConfigError(msg) from error
    return Shelf([scenarios.journal_place(place) for place in places], scenarios.driver_of), serve


def _exported(result: dict[str, Any]) -> list[str]:
    return [*result["metrics"].splitlines(), *(f"# {sentence}" for sentence in result["broken"])]
