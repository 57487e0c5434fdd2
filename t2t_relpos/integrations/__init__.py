"""Attention of this library in PyTorch and in models of other libraries."""
