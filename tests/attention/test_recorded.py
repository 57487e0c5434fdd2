"""Compares attention functions and layers with recorded results of tensor2tensor.

The recordings are in tests/reference/attention and tests/reference/variants.
"""

import compare_attention
import compare_layers
import pytest
from compare_attention import compare
from keras import ops

# Number of recordings in float32 and float64, by function or layer.
NUM_RECORDINGS = {
    "reference.relative_position_embeddings": 8,
    "reference.relative_attention_inner": 12,
    "reference.dot_product_attention_relative": 34,
    "attend": 32,
    "attend with left_sided_table": 16,
    "attend with two_sided_table": 8,
    "attend_2d": 6,
    "attend_two_blocks": 8,
    "RelativeMultiHeadAttentionV2(masked=True)": 16,
    "RelativeMultiHeadAttentionV2(masked=False)": 8,
    "RelativeMultiHeadAttention2D": 6,
    "LocalRelativeMultiHeadAttention": 8,
}
FAMILIES = {
    family.ours: family for family in (*compare_attention.FAMILIES, *compare_layers.FAMILIES)
}


@pytest.mark.parametrize("name", NUM_RECORDINGS)
def test_outputs_and_gradients_equal_tensor2tensor(name):
    family = FAMILIES[name]
    assert len(family.paths("float32", "float64")) == NUM_RECORDINGS[name]
    for path in family.paths():
        for measurement in compare(family, path):
            assert measurement.holds, measurement


def test_all_families_are_compared():
    assert list(FAMILIES) == list(NUM_RECORDINGS)
    assert len(FAMILIES) == len(compare_attention.FAMILIES) + len(compare_layers.FAMILIES)


def compare_changed_output(change):
    """Returns the measurement of an output after `change(output)`."""
    family = FAMILIES["attend_2d"]
    changed = compare_attention.Family(
        family.theirs, family.ours, family.prefix, lambda *args: change(family.compute(*args))
    )
    return next(compare(changed, family.paths("float32")[-1]))


def test_compare_detects_a_wrong_output():
    assert not compare_changed_output(lambda output: output * 1.00001).holds


def test_compare_rejects_an_output_of_another_dtype():
    with pytest.raises(ValueError, match="Expected dtype float32. Received: float16."):
        compare_changed_output(lambda output: ops.cast(output, "float16"))
