"""Runs the tests of `keras.layers.MultiHeadAttention` in the installed wheel on our layer."""

import functools
import types
import unittest.mock

import keras
import pytest
from keras.src.layers.attention import multi_head_attention_test as keras_tests

from t2t_relpos.layers import RelativeMultiHeadAttention

# Keras allows warnings in its tests.
pytestmark = pytest.mark.filterwarnings("ignore")
IS_TENSORFLOW = keras.backend.backend() == "tensorflow"


@keras.saving.register_keras_serializable(package="tests")
class WithoutTables(RelativeMultiHeadAttention):
    """The layer with Keras's defaults: without relative positions."""

    def __init__(self, *args, use_key_table=False, use_value_table=False, **kwargs):
        tables = {"use_key_table": use_key_table, "use_value_table": use_value_table}
        super().__init__(*args, **tables, **kwargs)


@keras.saving.register_keras_serializable(package="tests")
class WithTables(RelativeMultiHeadAttention):
    """The layer with relative positions."""

    def __init__(self, *args, max_relative_position=3, **kwargs):
        super().__init__(*args, max_relative_position=max_relative_position, **kwargs)


def expect_failures(reasons, *, run=True):
    """Marks the tests of a class that fail, by name, as strict expected failures."""

    def decorate(cls):
        for reason, names in reasons.items():
            for name in names:
                mark = pytest.mark.xfail(reason=reason, strict=True, run=run)
                setattr(cls, name, mark(_copy(getattr(cls, name))))
        return cls

    return decorate


def _copy(test):
    # A mark of the inherited function would apply to all classes.
    @functools.wraps(test)
    def copy(self):
        return test(self)

    return copy


class KerasTests(keras_tests.MultiHeadAttentionTest):
    """Keras's tests of the class `attention`."""

    __test__ = False
    attention = None

    def setUp(self):
        layers = types.SimpleNamespace(**vars(keras_tests.layers))
        layers.MultiHeadAttention = self.attention
        patch = unittest.mock.patch.object(keras_tests, "layers", layers)
        patch.start()
        self.addCleanup(patch.stop)
        if keras.config.is_traceback_filtering_enabled():
            self.addCleanup(keras.config.enable_traceback_filtering)
        super().setUp()


SHAPES = ("high_dim_same_proj", "high_dim_different_proj", "different_qv_last_dims")
MASKS = ("1freebatch_mask2", "1freebatch_mask3", "1freebatch_mask4", "2d_attention")
FAILURES = {
    "relative positions have one axis": [
        "test_attention_axes_negative_indexing",
        "test_causal_only_masks_non_4d_inputs",
        *(f"test_compute_output_shape_{name}" for name in SHAPES),
        *(f"test_high_dim_attention_4d_inputs_{name}" for name in MASKS),
        "test_high_dim_attention_5d_inputs_2d_attention",
        "test_high_dim_attention_5d_inputs_2d_attention_fullmask",
    ],
    "reads private attributes of Keras's layer": [
        "test_dtype_policy_map",
        "test_initializer",
        "test_mha_constraints",
        "test_sliding_window_serialization",
    ],
    "documented difference: masks of a float dtype are an error": [
        "test_masking_with_different_shapes"
    ],
    "documented difference: the last query is at the last key": ["test_masking_causal"],
}
if not IS_TENSORFLOW:
    FAILURES["flash attention with dropout is supported"] = ["test_flash_attention_with_errors"]


# Calls the garbage collector, which takes seconds, before it fails.
SLOW_FAILURES = {"reads private attributes of Keras's layer": ["test_quantize_int8"]}


@expect_failures(FAILURES)
@expect_failures(SLOW_FAILURES, run=False)
class TestWithoutTables(KerasTests):
    __test__ = True
    attention = WithoutTables


TABLES = {
    "the tables are additional weights": [
        "test_basics",
        "test_correctness_disable_flash_attention",
        "test_correctness_enable_flash_attention",
        "test_lora",
        *([] if IS_TENSORFLOW else ["test_basics_with_flash_attention"]),
    ]
}


@expect_failures(TABLES)
@expect_failures(FAILURES, run=False)  # They run without tables.
@expect_failures(SLOW_FAILURES, run=False)
class TestWithTables(KerasTests):
    __test__ = True
    attention = WithTables
