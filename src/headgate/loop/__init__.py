"""The control loop: collect, examine, decide, apply.

Belongs here: the order of the four stages, what makes a cycle *not ready*, and the small ports
that an engine implements (metrics source, actuator, clock, journal). Does not belong here: any
policy (control), any engine, and anything that knows what a Spark batch is.
"""
