"""From an ordinary PySpark query to what headgate runs in its place.

Belongs here: reading Spark's analysed plan node by node, one module per stateful kind, and saying in
PySpark's words what cannot be run. Does not belong here: running anything, private classes of Spark
(jvm), what an operator does with its rows (headgate.operators).
"""
