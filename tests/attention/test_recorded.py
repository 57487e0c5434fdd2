"""Attention compared with recordings of tensor2tensor in tests/reference."""

import pytest

# Number of recordings, of both dtypes.
FUNCTIONS = {
    "reference.relative_position_embeddings": 8,
    "reference.relative_attention_inner": 12,
    "reference.dot_product_attention_relative": 34,
    "attend": 32,
    "attend with left_sided_table": 16,
    "attend with two_sided_table": 8,
    "attend_2d": 6,
    "attend_two_blocks": 8,
}


@pytest.fixture(scope="module")
def compare(import_reference):
    return import_reference("compare_attention")


def assert_holds(compare, name):
    (family,) = (f for f in compare.FAMILIES if f.ours == name)
    assert len(family.paths("float32", "float64")) == FUNCTIONS[name]
    for path in family.paths():
        for measurement in compare.compare(family, path):
            assert measurement.holds, measurement


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_equal_tensor2tensors(compare, name):
    assert_holds(compare, name)


def test_no_function_is_left_out(compare):
    assert [family.ours for family in compare.FAMILIES] == list(FUNCTIONS)


def test_an_error_is_noticed(compare):
    (family,) = (f for f in compare.FAMILIES if f.ours == "attend_2d")

    def slightly_wrong(record, tensors):
        return family.compute(record, tensors) * 1.00001

    wrong = compare.Family(family.theirs, family.ours, family.prefix, slightly_wrong)
    assert not next(compare.compare(wrong, family.paths()[-1])).holds
