"""Implements the kernels of operators: plain functions on arrays.

Belongs here: loops that `core.jit` compiles and that give the same answer uncompiled. Does not
belong here: classes, I/O, logging, Python objects in arrays, and names another layer would need.
"""
