"""Which variable belongs here? A task on syntax trees that shows what labels of edges are for.

python -m examples.python_trees
"""
