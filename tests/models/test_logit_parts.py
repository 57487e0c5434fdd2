"""Tests of the summary statistics, compared with their definitions."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from t2t_relpos.models.attention_maps import (
    AttentionMap,
    measure_logit_parts,
    softmax,
    subtract_row_means,
)

VISIBLE = np.tri(5, 7, 2, dtype=bool)


def make_map(content, position):
    return AttentionMap(softmax(content + position, VISIBLE), content, position, VISIBLE)


@pytest.fixture
def layer(rng):
    return make_map(rng.normal(size=(3, 5, 7)), rng.normal(size=(3, 5, 7)) * 0.5)


def heads(layer):
    """Returns the values of each head as a namespace."""
    parts = measure_logit_parts(layer)
    return [SimpleNamespace(**dict(zip(parts, head))) for head in zip(*parts.values())]


def test_measure_logit_parts_equals_the_definitions(layer):
    for head, parts in enumerate(heads(layer)):
        squares, moved = np.zeros(2), []
        for i in range(5):
            keys = slice(0, min(i + 3, 7))
            rows = [part[head, i, keys] for part in (layer.content, layer.position)]
            squares += [np.sum((row - row.mean()) ** 2) for row in rows]
            powers = np.exp(rows[0])
            moved.append(np.abs(layer.weights[head, i, keys] - powers / powers.sum()).sum() / 2)
        assert math.isclose(parts.share, squares[1] / squares.sum())
        expected = np.sqrt(squares / VISIBLE.sum())
        np.testing.assert_allclose([parts.content, parts.position], expected)
        assert math.isclose(parts.moved, np.mean(moved))


def test_measure_logit_parts_ignores_row_means_and_masked_pairs(layer, rng):
    changed = {}
    for name in ("content", "position"):
        shifted = getattr(layer, name) + 100 * rng.normal(size=(3, 5, 1))
        changed[name] = np.where(VISIBLE, shifted, 1e30)
    actual, expected = measure_logit_parts(layer._replace(**changed)), measure_logit_parts(layer)
    assert actual.keys() == expected.keys()
    for name, values in actual.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-9)


def test_measure_logit_parts_of_zeros(layer):
    zeros = np.zeros((3, 5, 7))
    for parts in heads(make_map(zeros, layer.position)):
        assert parts.share == 1 and parts.content == 0 and parts.moved > 0
    for parts in heads(make_map(layer.content, zeros + 2)):
        assert parts.share == 0 and parts.position == 0 and abs(parts.moved) < 1e-12
    for parts in heads(make_map(zeros, zeros)):
        assert math.isnan(parts.share) and parts.moved == 0


def test_subtract_row_means(layer):
    rows = subtract_row_means(layer.content, VISIBLE)
    np.testing.assert_allclose(rows.sum(-1), 0, atol=1e-12)
    assert (rows[:, ~VISIBLE] == 0).all()
