"""Comparisons of sequences of arrays."""

import keras
import numpy as np


def assert_all_close(found, expected, **tolerances):
    """Asserts that the arrays and tensors of two nested sequences are close.

    Args:
        found: a sequence or iterator, whose elements may be nested.
        expected: as many arrays.
        **tolerances: `rtol` and `atol` of `np.testing.assert_allclose`.
    """
    for one, other in zip(_arrays(found), _arrays(expected), strict=True):
        np.testing.assert_allclose(one, other, **tolerances)


def assert_all_equal(found, expected):
    """Asserts that the arrays and tensors of two nested sequences are equal."""
    for one, other in zip(_arrays(found), _arrays(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def _arrays(nested):
    return map(keras.ops.convert_to_numpy, keras.tree.flatten(list(nested)))
