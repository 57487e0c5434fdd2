"""Tests of the order of worker processes, and of tables."""

import pytest

from benchmarks import tables
from benchmarks.workers import in_turns

pytestmark = pytest.mark.slow


def test_in_turns_rotates_the_order_of_names():
    assert list(in_turns({"x": 1, "y": 2, "z": 3}, 4)) == [
        *((0, name) for name in "xyz"),
        *((1, name) for name in "yzx"),
        *((2, name) for name in "zxy"),
        *((3, name) for name in "xyz"),
    ]


def test_median_with_its_interval():
    assert tables.format_median([3.0, 3.0, 3.0]) == "3.00 (3.00 – 3.00)"
    # Most samples of 99 equal values and one other value have the median of the equal ones.
    assert tables.format_median([7.0] + 99 * [2.0], digits=1) == "2.0 (2.0 – 2.0)"
