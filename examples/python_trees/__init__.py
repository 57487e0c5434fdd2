"""Fills holes in Python functions. Usage: python -m examples.python_trees --help."""
