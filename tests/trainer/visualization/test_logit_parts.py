import dataclasses
import math

import numpy as np
import pytest

from trainer.visualization.attention_maps import AttentionMap
from trainer.visualization.logit_parts import centred, logit_parts, softmax

VISIBLE = np.tri(5, 7, 2, dtype=bool)


def layer_of(content, position):
    weights = softmax(content + position, VISIBLE)
    return AttentionMap(
        np.zeros((3, 5, 2)), weights, content, position, VISIBLE, np.zeros((5, 2)), None
    )


@pytest.fixture
def layer(rng):
    return layer_of(rng.normal(size=(3, 5, 7)), rng.normal(size=(3, 5, 7)) * 0.5)


def test_by_hand(layer):
    for head, parts in enumerate(logit_parts(layer)):
        squares, moved = np.zeros(2), []
        for i in range(5):
            seen = slice(0, min(i + 3, 7))
            rows = [part[head, i, seen] for part in (layer.content, layer.position)]
            squares += [np.sum((row - row.mean()) ** 2) for row in rows]
            powers = np.exp(rows[0])
            moved.append(np.abs(layer.weights[head, i, seen] - powers / powers.sum()).sum() / 2)
        assert math.isclose(parts.share, squares[1] / squares.sum())
        np.testing.assert_allclose(
            [parts.content, parts.position], np.sqrt(squares / VISIBLE.sum())
        )
        assert math.isclose(parts.moved, np.mean(moved))


def test_neither_rows_means_nor_hidden_pairs_count(layer, rng):
    expected = logit_parts(layer)
    changed = {}
    for name in ("content", "position"):
        moved = getattr(layer, name) + 100 * rng.normal(size=(3, 5, 1))
        changed[name] = np.where(VISIBLE, moved, 1e30)
    for parts, before in zip(
        logit_parts(dataclasses.replace(layer, **changed)), expected, strict=True
    ):
        np.testing.assert_allclose(parts, before, rtol=1e-9)


def test_all_and_nothing(layer):
    zeros = np.zeros((3, 5, 7))
    for parts in logit_parts(layer_of(zeros, layer.position)):
        assert parts.share == 1 and parts.content == 0 and parts.moved > 0
    for parts in logit_parts(layer_of(layer.content, zeros + 2)):
        assert parts.share == 0 and parts.position == 0 and abs(parts.moved) < 1e-12
    for parts in logit_parts(layer_of(zeros, zeros)):
        assert math.isnan(parts.share) and parts.moved == 0


def test_means_are_of_visible_keys(layer):
    rows = centred(layer.content, VISIBLE)
    np.testing.assert_allclose(rows.sum(-1), 0, atol=1e-12)
    assert (rows[:, ~VISIBLE] == 0).all()
    np.testing.assert_allclose(
        rows[:, 0, 0] - rows[:, 0, 1], layer.content[:, 0, 0] - layer.content[:, 0, 1]
    )
