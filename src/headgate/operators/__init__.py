"""Implements stateful operators on plain arrays: the meaning of a row of state, and its changes.

Belongs here: the spec of an operator (spec), the layout of keys and aggregates in rows (layout,
codec, leaves), merging, windows as slices, sessions, joins (join), processors (processor, process),
late records, dropped and counted, and the output of each output mode (serve). Does not belong here:
the place where rows are kept (tables), the owner of a key group (`headgate.core.assignment`),
anything of Spark (spark).
"""
