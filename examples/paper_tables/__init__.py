"""Trains the models of the paper's tables. Usage: python -m examples.paper_tables --help."""
