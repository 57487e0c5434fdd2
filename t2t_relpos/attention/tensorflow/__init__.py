"""Relative attention for TensorFlow without XLA. Imported on that backend only."""
