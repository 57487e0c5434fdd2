"""Relative attention in models of other libraries, one module for each."""
