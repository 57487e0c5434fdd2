"""Attention equals what tensor2tensor recorded (tests/reference), as docs/parity.md tells."""

import sys

import keras
import pytest

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="takes gradients with TensorFlow"
)

FUNCTIONS = [
    "reference.relative_position_embeddings",
    "reference.relative_attention_inner",
    "reference.dot_product_attention_relative",
    "attend",
    "attend with left_sided_table",
    "attend with two_sided_table",
    "attend_2d",
    "attend_two_blocks",
]
NUM_RECORDINGS = [8, 12, 34, 32, 16, 8, 6, 8]


@pytest.fixture(scope="module")
def compare(import_reference):
    return import_reference("compare_attention")


def assert_holds(compare, family, count):
    paths = family.paths()
    assert len(paths) == count
    for path in paths:
        for measurement in compare.compare(family, path):
            assert measurement.holds, measurement


@pytest.mark.parametrize("name, count", list(zip(FUNCTIONS, NUM_RECORDINGS)))
def test_functions_equal_tensor2tensors(compare, name, count):
    (family,) = (f for f in compare.FAMILIES if f.ours == name)
    assert_holds(compare, family, count)


def test_no_function_is_left_out(compare):
    assert [family.ours for family in compare.FAMILIES] == FUNCTIONS


@pytest.mark.parametrize(
    "name", [name for name in FUNCTIONS if name.startswith("attend")]
)
def test_the_path_for_long_sequences_equals_tensor2tensors(compare, name, monkeypatch):
    attend = sys.modules["t2t_relpos.attention.attend"]
    monkeypatch.setattr(attend, "LONGEST_LOOKUP", 0)
    (family,) = (f for f in compare.FAMILIES if f.ours == name)
    assert_holds(compare, family, len(family.paths()))


def test_an_error_is_noticed(compare):
    (family,) = (f for f in compare.FAMILIES if f.ours == "attend_2d")

    def slightly_wrong(record, tensors):
        return family.compute(record, tensors) * 1.00001

    wrong = compare.Family(family.theirs, family.ours, family.prefix, slightly_wrong)
    assert not next(compare.compare(wrong, family.paths()[-1])).holds
