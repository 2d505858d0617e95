"""Compares the unified policy with each paper's own policy, on that paper's workload.

Belongs here: the comparisons and the criterion for being ahead. Does not belong here: the workloads and
the engines, which are those of the papers' figures.
"""
