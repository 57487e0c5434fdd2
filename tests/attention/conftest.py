"""Fixtures for the tests of attention."""

import dataclasses

import numpy as np
import pytest

from t2t_relpos.attention import dispatch


@pytest.fixture
def draw(rng, precision):
    """`draw(T, S, K, heads=None, value_dim=5)`: query, key, value and two tables."""

    def draw(length_q, length_k, k, heads=None, value_dim=5):
        lead = () if heads is None else (heads,)
        shapes = [(2, 3, length_q, 5), (2, 3, length_k, 5), (2, 3, length_k, value_dim)]
        shapes += [(*lead, 2 * k + 1, 5), (*lead, 2 * k + 1, value_dim)]
        return [rng.normal(size=shape).astype(precision.dtype) for shape in shapes]

    return draw


@pytest.fixture(scope="session")
def small_rows():
    """The rows of the table by name, with blocks so small that short sequences need several."""
    grouped = dict.fromkeys(("bidirectional", "causal"), dispatch.GroupedBlockSizes(5, 16, 2))
    blocks = dict.fromkeys(("cpu", "gpu", "tpu"), dispatch.BlockSizes(5, causal_segments=2))

    def shrink(row):
        if not row.sizes:
            return row
        return dataclasses.replace(row, sizes=grouped if "causal" in row.sizes else blocks)

    return {row.name: shrink(row) for row in dispatch.TABLE}


@pytest.fixture
def ran(monkeypatch):
    """The names of the rows that ran, in order."""
    names = []
    original = dispatch.Implementation

    def record(row):
        def run(implementation, inputs):
            names.append(row.name)
            return row.run(implementation, inputs)

        return dataclasses.replace(row, run=run)

    assert all(isinstance(row, original) for row in dispatch.TABLE)
    monkeypatch.setattr(dispatch, "TABLE", tuple(map(record, dispatch.TABLE)))
    return names


@pytest.fixture(scope="session")
def assert_close():
    """`assert_close(actual, expected, atol)`: equal lists of arrays, up to `atol`."""

    def check(actual, expected, atol):
        for ours, theirs in zip(actual, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)

    return check
