"""Turns journals into metrics: counters and gauges for Prometheus, alert rules, a Grafana board.

Belongs here: adding up the lines of a journal, the names and labels of metrics, and what is written in
them. Does not belong here: views for people, which are `headgate.report`, and anything that needs the
engine. Imports `headgate.journal` and `headgate.core` only.
"""
