import keras
import numpy as np
import pytest

from t2t_relpos.attention.table_matmul import matmul_by_position, matmul_table


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("heads, num_tables", [(1, None), (1, 1), (3, None), (3, 3)])
def test_matmul_table(heads, num_tables, transpose, rng):
    x = rng.normal(size=(5, heads, 7, 11)).astype("float32")
    shape = (11, 13) if num_tables is None else (num_tables, 11, 13)
    table = rng.normal(size=shape).astype("float32")
    actual = matmul_table(
        keras.ops.convert_to_tensor(x),
        np.swapaxes(table, -1, -2) if transpose else table,
        transpose_table=transpose,
    )
    np.testing.assert_allclose(actual, x @ table, rtol=0, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 3])
def test_matmul_by_position(heads, rng):
    x, rows = (
        rng.normal(size=shape).astype("float32") for shape in ((5, heads, 7, 11), (7, 11, 13))
    )
    expected = np.einsum("bntx,txy->bnty", x, rows)
    np.testing.assert_allclose(
        matmul_by_position(keras.ops.convert_to_tensor(x), rows), expected, rtol=0, atol=1e-5
    )
