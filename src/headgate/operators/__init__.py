"""Implements stateful operators on plain arrays; defines the content of state rows and their changes.

Belongs here: the spec of an operator (spec), the layout of keys and aggregates in rows (layout,
codec, leaves), merging, windows as slices, sessions, joins (join), processors (processor, process),
late records, and the output of each output mode (serve). Does not belong here: the storage of rows
(tables), the assignment of key groups to slots (`headgate.core.assignment`), calls of Spark (spark).
"""
