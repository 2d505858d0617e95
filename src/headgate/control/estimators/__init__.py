"""Estimates the values that a policy reads from an engine's counters: latencies, rates, costs, forecasts.

Belongs here: the examiner and its kernels, forecasts and trends, the cost of a task and of an event, the
split of an end-to-end bound, the grouping of events over replicas. Does not belong here: decisions
(slots, fleet, pools), counting (the engine).
"""
