"""Stateful operators on plain arrays: what a row of state means, and how it changes.

Belongs here: the layout of keys and aggregates in rows, merging, windows as slices, late records,
what an output mode emits. Does not belong here: where rows are kept (state), who runs which key group
(core.assignment), anything of Spark (engines).
"""
