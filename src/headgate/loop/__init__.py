"""Runs the control loop: collect, examine, decide, apply.

Belongs here: the sequence of the four stages (loop; replicas for pools), the condition *not ready*, the
settings of an operator (settings, steering), the latency floor (floor, batch_floor), and the small ports
that an engine implements (ports: metrics source, actuator, journal). Time comes as an argument. Does not
belong here: any policy (control), any engine, and any code about Spark's batches, except the floor of a
job in micro-batches.
"""
