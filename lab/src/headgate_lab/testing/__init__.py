"""The public test kit: what it takes to try a job, a policy or a store.

Belongs here: the fake clock, contract suites, stores that fail on purpose, the faulty transport.
May import everything below `scenario`. Does not belong here: anything that runs in production; no
package below imports it.
"""
