"""The laboratory: the papers' figures, benchmarks, and the simulators and libraries that only they need.

A distribution of its own, so that whoever runs a job does not install it. Imports the product;
nothing of the product imports it.
"""
