"""Answers the page's costly questions, on request only: a checkpoint's content, and what if."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from headgate.control.registry import is_own
from headgate.core.errors import ConfigError, HeadgateError
from headgate.core.input import shown
from headgate.scenario.inspection import inspect
from headgate.whatif.replay import replay

_one_at_a_time = threading.Lock()
"""Held during a simulation, which takes a core from this machine's jobs for seconds."""


def checkpoint_content(checkpoint: str | Path) -> dict[str, Any]:
    """Return the result of `hg.inspect` of a checkpoint, and ``error``, empty without an error."""
    try:
        return {"error": "", **inspect(checkpoint)}
    except HeadgateError as error:
        return {"error": str(error)}


def what_if(
    checkpoint: str | Path, *, slo: str = "", policy: str = "", slots_max: str = ""
) -> dict[str, Any]:
    """Return a recorded run as it was, as it is simulated, and as it might have been.

    Returns the result of `headgate.whatif.replay.replay`, with its ``error`` as ``error_of_model``;
    ``error`` says why there is no answer, and is empty with an answer.

    `slo`, `policy`, `slots_max`: what the user typed; empty for the recorded value.
    """
    if not _one_at_a_time.acquire(blocking=False):
        return {"error": "another simulation is under way; ask again when it has ended."}
    try:
        result = replay(
            checkpoint,
            slo_text=slo or None,
            policy_text=_policy(policy),
            slots_max=_count(slots_max),
        )
        return {**result, "error_of_model": result["error"], "error": ""}
    except HeadgateError as error:
        return {"error": str(error)}
    finally:
        _one_at_a_time.release()


def _policy(text: str) -> str | None:
    """Return the name of one of headgate's policies; a page must not choose other code."""
    if text and not is_own(text):
        msg = f'policy "{shown(text, 80)}" is not one of headgate\'s; type it: headgate replay --policy.'
        raise ConfigError(msg)
    return text or None


def _count(text: str) -> int | None:
    if text and not (text.isascii() and text.isdecimal() and len(text) <= 9):  # noqa: PLR2004
        msg = f'slots_max="{shown(text, 20)}" is no number of slots; write 8.'
        raise ConfigError(msg)
    return int(text) if text else None
