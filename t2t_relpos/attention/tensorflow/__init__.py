"""Relative attention for TensorFlow on CPUs without XLA. Imported on that backend only."""
