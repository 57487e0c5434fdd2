"""Markers of tests that require an optional package."""

import importlib.util

import pytest

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None,
    reason="needs matplotlib: pip install '.[plots]'",
)
