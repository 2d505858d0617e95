"""Contains the laboratory: the papers' figures, benchmarks, and the simulators and libraries they need.

It is a separate distribution, which running a job does not require. It imports the product; nothing in
the product imports it.
"""
