"""The unified policy on the workload of each paper, beside that paper's own policy.

Belongs here: what is compared, and what counts as ahead. Does not belong here: the workloads and the
engines, which are those of the papers' figures.
"""
