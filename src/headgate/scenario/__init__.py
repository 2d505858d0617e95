"""Composes runs: a workload on the Spark engine, for a while, with changes of slots on the way.

Belongs here: the description of a run (description, fleet_file, fleet_schedule), running it (run,
fleet, rehearsal), every call into the engine (spark, adoption), a query with a name (workload), requests
to a running query (requests), and the reading of a checkpoint (inspection, driver, places). Does not
belong here: simulations (whatif), how anything is computed or drawn. The engine is imported when a
scenario runs, not before: the command line must start, explain itself and read journals without Spark.
"""

from __future__ import annotations

from headgate.scenario.adoption import carry_checkpoint
from headgate.scenario.description import Scenario, recorded, settings_not_taken, to_verify
from headgate.scenario.driver import driver_of
from headgate.scenario.fleet import check_fleet, run_fleet_file
from headgate.scenario.inspection import inspect
from headgate.scenario.places import journal_at, written
from headgate.scenario.requests import ask, freeze_arguments, scale_arguments, stop
from headgate.scenario.run import explain_workload, run_scenario, verify_scenario
from headgate.scenario.stored_journal import journal_place

__all__ = [
    "Scenario",
    "ask",
    "carry_checkpoint",
    "check_fleet",
    "driver_of",
    "explain_workload",
    "freeze_arguments",
    "inspect",
    "journal_at",
    "journal_place",
    "recorded",
    "run_fleet_file",
    "run_scenario",
    "scale_arguments",
    "settings_not_taken",
    "stop",
    "to_verify",
    "verify_scenario",
    "written",
]
