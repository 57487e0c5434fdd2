import numpy as np
import pytest
from keras import ops

from t2t_relpos.attention import attend, relative_ids
from t2t_relpos.attention.variants import left_sided_table, two_sided_table


@pytest.mark.parametrize("heads", [(), (2,)])
@pytest.mark.parametrize(("convert", "rows"), [(two_sided_table, 5), (left_sided_table, 3)])
def test_converted_table_is_zero_beyond_its_distances(convert, rows, heads, rng):
    table = rng.normal(size=(*heads, rows, 7)).astype("float32")  # K = 3
    converted = ops.convert_to_numpy(convert(table))
    assert converted.shape == (*heads, 7, 7)
    by_pair = converted[..., ops.convert_to_numpy(relative_ids(11, 11, 3)), :]
    for i, j in np.ndindex(11, 11):
        row = j - i + 2
        expected = table[..., row, :] if 0 <= row < rows else 0
        np.testing.assert_array_equal(by_pair[..., i, j, :] - expected, 0)


def test_attend_accepts_converted_tables(rng):
    x = rng.normal(size=(2, 3, 7, 5)).astype("float32")
    table = rng.normal(size=(3, 5)).astype("float32")
    outputs, _ = attend(
        x, x, x, left_sided_table(table), two_sided_table(np.zeros((5, 5), "float32"))
    )
    expected, _ = attend(x, x, x, left_sided_table(table))
    np.testing.assert_allclose(outputs, expected, atol=1e-6)
