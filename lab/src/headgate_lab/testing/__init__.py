"""Provides the public test kit for jobs, policies and stores.

Belongs here: the fake clock, contract suites, stores that fail on purpose, the faulty transport.
May import everything below `scenario`. Does not belong here: anything that runs in production; no
package below imports it.
"""
