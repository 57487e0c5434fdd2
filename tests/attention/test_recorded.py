"""Compares attention functions with recorded results of tensor2tensor (tests/reference)."""

import pytest

# Number of recordings in float32 and float64, by function.
NUM_RECORDINGS = {
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


def assert_within_limits(compare, name):
    (family,) = (f for f in compare.FAMILIES if f.ours == name)
    assert len(family.paths("float32", "float64")) == NUM_RECORDINGS[name]
    for path in family.paths():
        for measurement in compare.compare(family, path):
            assert measurement.holds, measurement


@pytest.mark.parametrize("name", NUM_RECORDINGS)
def test_functions_equal_tensor2tensor(compare, name):
    assert_within_limits(compare, name)


def test_all_functions_are_compared(compare):
    assert [family.ours for family in compare.FAMILIES] == list(NUM_RECORDINGS)


def test_compare_detects_a_wrong_output(compare):
    (family,) = (f for f in compare.FAMILIES if f.ours == "attend_2d")

    def slightly_wrong(record, tensors):
        return family.compute(record, tensors) * 1.00001

    wrong = compare.Family(family.theirs, family.ours, family.prefix, slightly_wrong)
    assert not next(compare.compare(wrong, family.paths()[-1])).holds
