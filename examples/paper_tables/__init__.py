"""Trains the models of the paper's tables and compares their BLEU with the published one.

python -m examples.paper_tables table1 --data=synthetic --presets=tiny
"""
