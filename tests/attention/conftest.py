"""Fixtures shared by the attention tests."""

import dataclasses

import numpy as np
import pytest
from comparisons import assert_all_close
from plain_flash_kernel import without_kernel

from t2t_relpos.attention import dispatch, gather, limits

NEVER = dispatch.Condition("never", lambda call: False)


@pytest.fixture
def draw(rng, precision):
    """Returns `draw(T, S, K, heads=None, value_dim=5)`.

    It returns random query, key, value, key table and value table.
    """

    def draw(length_q, length_k, k, heads=None, value_dim=5):
        lead = () if heads is None else (heads,)
        shapes = [(2, 3, length_q, 5), (2, 3, length_k, 5), (2, 3, length_k, value_dim)]
        shapes += [(*lead, 2 * k + 1, 5), (*lead, 2 * k + 1, value_dim)]
        return [rng.normal(size=shape).astype(precision.dtype) for shape in shapes]

    return draw


@pytest.fixture(scope="session")
def small_block_implementations():
    """Returns all implementations by name. Blocks are small, so that tests use several.

    "blocks in a loop" saves no weights. "by_id with a gather" gathers for any query offset.
    A group has all of three heads for up to 20 keys, and one head for 31 keys or more. With
    `flash`, it has three heads for up to 13 positions, and one head for 21 or more.
    """
    of_tensorflow = limits.Sizes(7, group=60, chunk=2)
    sizes_by_name = {
        "saved_blocks": of_tensorflow,
        "rematerialized_blocks": of_tensorflow,
        "flash": limits.Sizes(7, smallest=2, group=400),
        "blocks": limits.Sizes(7, causal_segments=2),
    }

    def with_small_blocks(implementation):
        sizes = sizes_by_name.get(implementation.name)
        if sizes is None:
            return implementation
        sizes = dict.fromkeys(("cpu", "gpu", "tpu"), sizes)
        return dataclasses.replace(implementation, sizes=sizes)

    implementations = {each.name: with_small_blocks(each) for each in dispatch.TABLE}
    loop = {"name": "blocks in a loop", "saves_weights": NEVER}
    implementations[loop["name"]] = dataclasses.replace(implementations["blocks"], **loop)
    implementations["by_id with a gather"] = dataclasses.replace(
        implementations["by_id"], function=gather.attend_by_index
    )
    implementations["flash without a kernel"] = without_kernel(implementations["flash"])
    return implementations


@pytest.fixture(scope="session")
def assert_close(precision):
    """Returns `assert_close(found, expected)` for pairs of outputs and a structure of gradients."""

    def check(found, expected):
        np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=precision.atol)
        assert_all_close([found[1]], [expected[1]], rtol=0, atol=10 * precision.atol)

    return check
