import numpy as np
import pytest
from keras import ops

from t2t_relpos.attention import attend, relative_ids
from t2t_relpos.attention.variants import left_sided_table, two_sided_table


@pytest.mark.parametrize("heads", [(), (2,)])
def test_two_sided_has_its_rows_by_distance_and_zeros_beyond(heads, rng):
    table = rng.normal(size=(*heads, 5, 7)).astype("float32")  # K = 3
    clipped = ops.convert_to_numpy(two_sided_table(table))
    assert clipped.shape == (*heads, 7, 7)
    by_pair = clipped[..., ops.convert_to_numpy(relative_ids(11, 11, 3)), :]
    for i, j in np.ndindex(11, 11):
        d = j - i
        expected = table[..., d + 2, :] if abs(d) < 3 else 0
        np.testing.assert_array_equal(by_pair[..., i, j, :] - expected, 0)


@pytest.mark.parametrize("heads", [(), (2,)])
def test_left_sided_has_its_rows_by_distance_and_zeros_beyond(heads, rng):
    table = rng.normal(size=(*heads, 3, 7)).astype("float32")
    clipped = ops.convert_to_numpy(left_sided_table(table))
    assert clipped.shape == (*heads, 7, 7)
    by_pair = clipped[..., ops.convert_to_numpy(relative_ids(11, 11, 3)), :]
    for i, j in np.ndindex(11, 11):
        d = j - i
        expected = table[..., d + 2, :] if -3 < d <= 0 else 0
        np.testing.assert_array_equal(by_pair[..., i, j, :] - expected, 0)


def test_attend_takes_them(rng):
    x = rng.normal(size=(2, 3, 7, 5)).astype("float32")
    table = rng.normal(size=(3, 5)).astype("float32")
    outputs, _ = attend(
        x, x, x, left_sided_table(table), two_sided_table(np.zeros((5, 5), "float32"))
    )
    plain, _ = attend(x, x, x, left_sided_table(table))
    np.testing.assert_allclose(outputs, plain, atol=1e-6)
