"""Tests the numbers that laws, loops and simulations take where nobody gives any: documents name them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from headgate.control.fleet.henge import HengeParameters
from headgate.control.fleet.juice import Flow
from headgate.control.fleet.unified_fleet import UnifiedFleetParameters
from headgate.control.fleet.view import FleetJob, FleetOperator, FleetView
from headgate.control.observation import OperatorView
from headgate.control.pools.replicas import OperatorInterval, ReplicaDecision
from headgate.loop.settings import OperatorSettings
from headgate.whatif.model import MicroBatch, OperatorModel, ServiceTime, SlotPool, TreatmentCost
from headgate.whatif.oracle import Load
from headgate.whatif.simulate import WhatIf
from headgate.whatif.trace_file import TraceColumns


def numbers(kind: Any) -> dict[str, Any]:
    """Return the numbers that are the defaults of a class's fields."""
    return {
        field.name: field.default
        for field in dataclasses.fields(kind)
        if isinstance(field.default, bool | int | float)
    }


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (HengeParameters, {
            "round_s": 10.0, "observe_s": 900.0, "fresh_s": 300.0, "settle_s": 60.0,
            "settle_max_s": 300.0, "settle_tolerance": 0.01, "congestion_threshold": 0.3,
            "slots_per_unit": 10.0, "gain": 0.05, "blacklist_s": 3600.0, "stable_rounds": 4,
            "reduction": 0.8, "drop": 0.05, "input_change": 0.1, "input_steady": 0.02,
            "blame_falling": True, "patience_rounds": 2,
        }),
        (UnifiedFleetParameters, {
            "epsilon": 0.4, "ahead_s": 120.0, "look_back_s": 120.0, "observe_s": 900.0,
            "settle_s": 60.0, "catch_up_s": 300.0, "kept": 2, "bound_s": 1.0,
        }),
        (Flow, {"waiting": 0.0}),
        (FleetOperator, {"backlog_s": 0.0, "source": False, "slots_min": 1, "slots_max": 128}),
        (FleetJob, {"input_rate": 0.0}),
        (FleetView, {"hosts": 1, "hosts_congested": 0}),
        (OperatorInterval, {"from_source": 0.0, "queued": 0.0, "stateful": False, "least": 1}),
        (ReplicaDecision, {"restart": False}),
        (OperatorView, {
            "floor_s": 0.0, "slots_min": 1, "slots_max": 1, "costs_seen": 0, "success": 0.99,
            "held": False,
        }),
        (OperatorSettings, {"slots_min": 1, "success": 0.99, "alert_s": 0.1}),
        (ServiceTime, {"deviation_s": 0.0, "cap_per_s": math.inf}),
        (SlotPool, {"alpha": 1.0, "beta": 0.0}),
        (TreatmentCost, {
            "sync_s": 0.1, "per_group_s": 0.01, "group_bytes": 0.0, "record_bytes": 0.0,
            "bandwidth_bytes_per_s": 125e6, "barrier_records": 0, "delay_s": 0.0,
        }),
        (MicroBatch, {
            "plan_s": 0.15, "read_s": 0.0, "commit_s": 0.07, "task_s": 0.02, "moved_group_s": 0.0,
            "cores": 2, "trigger_s": 0.0, "backlog_age_max_s": 60.0, "initial_rate_per_s": 1e5,
            "poll_s": 0.01, "budget_s": math.inf,
        }),
        (OperatorModel, {"key_groups": 64, "slots": 1, "selectivity": 1.0}),
        (Load, {
            "bound_s": 1.0, "window_s": 1.0, "delta_s": 0.1, "from_s": 0.0,
            "slots_max": 64,
        }),
        (WhatIf, {"slots_max": 64, "seed": 1, "oracle": False}),
        (TraceColumns, {"speed": 1.0}),
    ],
)  # fmt: skip
def test_a_number_that_nobody_gives_is_the_documented_one(
    kind: Any, wanted: dict[str, Any]
) -> None:
    assert numbers(kind) == wanted
