import dataclasses

import keras
import numpy as np
import pytest

from t2t_relpos.attention import attend, dispatch, explain, portable
from t2t_relpos.attention.call import AttentionCall
from t2t_relpos.attention.dropout import AttentionDropout

CPU = {"backend": "tensorflow", "xla": False, "device": "cpu"}
XLA = {"backend": "tensorflow", "xla": True, "device": "gpu"}
GPU = {**XLA, "xla": False}
JAX = {"backend": "jax", "xla": False, "device": "tpu"}
NO_TABLES = {"max_relative_position": None}
TORCH = {"backend": "torch", "xla": False, "device": "cpu"}
JAX_GPU = {**JAX, "device": "gpu", "dtype": "bfloat16"}
TORCH_GPU, TORCH_TPU = {**TORCH, "device": "gpu"}, {**TORCH, "device": "tpu"}
TRAINING = {**CPU, "rematerialize": False}
# The row `blocks`, and the number of saved matrices.
UNROLLED, LOOP = ("blocks", 1), ("blocks", 0)
# The choice of the backend of the tests, without returned weights.
CHOSEN_FOR_101_POSITIONS = {
    "tensorflow": "full_matrix",
    "jax": "blocks",
    "torch": "by_id",
}[keras.backend.backend()]


@pytest.mark.parametrize(
    "length, options, expected",
    [
        (64, TRAINING, "rows"),
        (96, TRAINING, "full_matrix"),
        (1024, TRAINING, "full_matrix"),
        (1025, TRAINING, "saved_blocks"),
        (4097, TRAINING, "rematerialized_blocks"),
        (39, {**TRAINING, "causal": True}, "rows"),
        (40, {**TRAINING, "causal": True}, "full_matrix"),
        (257, {**TRAINING, "causal": True}, "saved_blocks"),
        (256, CPU, "full_matrix"),
        (257, CPU, "rematerialized_blocks"),
        (129, {**CPU, "causal": True}, "rematerialized_blocks"),
        (11, {**CPU, "rematerialize": True}, "rematerialized_blocks"),
        (512, {**CPU, "return_weights": True}, "rows"),
        (513, {**CPU, "return_weights": True}, "by_id"),
        (512, {**CPU, "seeded_dropout": False}, "rows"),
        (64, XLA, "rows"),
        (65, XLA, UNROLLED),
        (1024, XLA, UNROLLED),
        (1025, XLA, LOOP),
        (11, {**XLA, "rematerialize": True}, LOOP),
        (0, {**CPU, "rematerialize": True}, "rows"),
        (11, {**XLA, "rematerialize": True, "max_relative_position": None}, LOOP),
        (1, GPU, "full_matrix"),
        (1024, {**GPU, "causal": True}, "full_matrix"),
        (1025, GPU, LOOP),
        (11, {**GPU, "rematerialize": True}, LOOP),
        (64, {**GPU, "max_relative_position": 0}, "rows"),
        (300, {**GPU, "query_offset": 1}, UNROLLED),
        (513, JAX, UNROLLED),
        (224, TORCH, "by_id"),
        (225, TORCH, "flash"),
        (128, {**TORCH, "causal": True, "rematerialize": False}, "by_id"),
        (129, {**TORCH, "causal": True, "rematerialize": False}, "flash"),
        (11, {**TORCH, "rematerialize": True}, LOOP),
        (400, {**TORCH, "rematerialize": True}, "flash"),
        # Long tables: more than a quarter of the positions have a distance of their own.
        (300, {**TORCH, "max_relative_position": 64, "rematerialize": True}, LOOP),
        (4096, {**TORCH, "max_relative_position": 512}, LOOP),
        (11, {**TORCH_GPU, "rematerialize": True}, "fused"),
        (128, TORCH_GPU, "rows"),
        (1024, {**TORCH_GPU, "causal": True}, UNROLLED),
        (1025, TORCH_GPU, "flash"),
        (128, JAX_GPU, "rows"),
        (129, {**JAX_GPU, "causal": True}, "flash"),
        (11, {**JAX_GPU, "rematerialize": True}, "flash"),
        (300, {**JAX_GPU, "seeded_dropout": False}, "rows"),
        (8192, {**JAX_GPU, "dtype": "float32"}, LOOP),
        (8192, {**JAX_GPU, "dtype": "float16", "device": "GPU"}, "flash"),
        (8192, {**JAX_GPU, "key_dim": 256}, "flash"),
        (8192, {**JAX_GPU, "key_dim": 264}, LOOP),
        (8192, {**JAX_GPU, "value_dim": 32}, LOOP),
        (8192, {**JAX_GPU, "dropout": 0.1}, LOOP),
        (8192, {**TORCH_GPU, "key_dim": 60}, LOOP),
        (8192, {**TORCH_GPU, "dtype": "float64"}, LOOP),
        (8192, {**TORCH, "key_dim": 60, "dtype": "float64"}, "flash"),
        (5000, TORCH_TPU, LOOP),
        (300, {**TORCH, "length_k": 301}, "flash"),
        (300, {**TORCH, "query_offset": 1}, "flash"),
        (300, {**TORCH, "sliding_window": 32}, "flash"),
        (300, {**TORCH, "sliding_window": 33}, UNROLLED),
        (1536, {**TORCH, "sliding_window": 200}, LOOP),
        (1537, {**TORCH, "sliding_window": 200, "rematerialize": False}, "flash"),
        (1025, {**TORCH, "sliding_window": 200, "causal": True}, "flash"),
        (2000, {**TORCH_GPU, "sliding_window": 200}, LOOP),
        (300, {**TORCH, **NO_TABLES, "rematerialize": True}, "scaled_dot_product_attention"),
        (8192, {**TORCH, **NO_TABLES, "causal": True}, "scaled_dot_product_attention"),
        (81, {**TORCH, **NO_TABLES, "length_k": 9, "causal": True}, "scaled_dot_product_attention"),
        (
            81,
            {**TORCH, **NO_TABLES, "length_k": 9, "causal": True, "rematerialize": True},
            LOOP,
        ),
        (64, {**TORCH, **NO_TABLES, "dropout": 0.1}, "without_tables"),
        (65, {**TORCH, "seeded_dropout": False}, "by_id"),
        (513, {**XLA, "portable": True, "rematerialize": True}, "by_id"),
        (512, {**CPU, "ids_rank": 2}, "rows"),
        (513, {**CPU, "ids_rank": 2}, "by_id"),
        (64, {**CPU, "ids_rank": 3}, "by_id"),
        (64, {**CPU, "offset_per_entry": True}, "by_id"),
        (150, {**TRAINING, "max_relative_position": 0}, "rows"),
        (150, {**TRAINING, "max_relative_position": 149}, "rows"),
        (300, {**TRAINING, "query_offset": 1}, "saved_blocks"),
        (256, {**TRAINING, "sliding_window": 65}, "full_matrix"),
        (300, {**CPU, "sliding_window": 65, "rematerialize": True}, "rematerialized_blocks"),
        (65, {**JAX, "sliding_window": 3}, UNROLLED),
        (3000, {**JAX, "sliding_window": 64}, LOOP),
        (3000, {**JAX, "sliding_window": 64, "max_relative_position": None}, LOOP),
    ],
)
def test_explain_names_the_selected_implementation(length, options, expected):
    explanation = explain(length, **{"max_relative_position": 16, **options})
    if not isinstance(expected, str):
        expected, saved_matrices = expected
        assert explanation.saved_matrices == saved_matrices
    assert explanation.chosen == expected
    assert set(explanation.reasons) == {each.name for each in dispatch.TABLE} - {expected}


FUSED = {**TORCH_GPU, "dtype": "bfloat16", "rematerialize": True}


@pytest.mark.parametrize(
    "options, name, reason",
    [
        (CPU, "without_tables", "requires no relative tables"),
        (
            CPU,
            "full_matrix",
            "requires up to 1,024 positions (TensorFlow without XLA on a CPU: 1,024, causal 256).",
        ),
        (CPU, "blocks", "after the chosen row"),
        (JAX, "saved_blocks", "requires TensorFlow without XLA on a CPU"),
        ({**FUSED, "sliding_window": 9}, "fused", "requires no `sliding_window`"),
        ({**FUSED, "dropout": 0.1}, "fused", "requires no `dropout`"),
        ({**FUSED, "dtype": "float64"}, "fused", "requires values as deep as keys, 16"),
        ({**FUSED, "key_dim": 160}, "fused", "requires values as deep as keys, 16"),
        ({**FUSED, "device": "cpu"}, "fused", "requires PyTorch with Triton on an NVIDIA GPU"),
        ({**FUSED, "rematerialize": None}, "fused", "requires `rematerialize` True"),
    ],
)
def test_explanation_names_the_failed_condition(options, name, reason):
    explanation = explain(64, **options)
    assert str(explanation).splitlines()[0] == f"{explanation.chosen}: chosen"
    assert explanation.reasons[name].startswith(reason)


@pytest.mark.parametrize(
    "options, chosen, otherwise",
    [
        (GPU, "full_matrix", ("blocks",)),
        ({**GPU, "rematerialize": True}, "blocks", ()),
        ({**GPU, "offset_per_entry": True}, "by_id", ()),
        ({**GPU, "max_relative_position": None}, "without_tables", ()),
        (XLA, "blocks", ()),
        (CPU, "full_matrix", ("rows", "rematerialized_blocks")),
        (TRAINING, "full_matrix", ("rows", "saved_blocks", "rematerialized_blocks")),
        ({**CPU, "return_weights": True}, "by_id", ()),
        (JAX, "blocks", ()),
        (TORCH, "blocks", ()),
    ],
)
def test_explain_of_unknown_lengths_names_all_candidates(options, chosen, otherwise):
    explanation = explain(None, **options)
    assert (explanation.chosen, explanation.otherwise) == (chosen, otherwise)
    named = {chosen, *otherwise}
    assert set(explanation.reasons) == {each.name for each in dispatch.TABLE} - named
    assert list(explanation.conditions) == [chosen, *otherwise][:-1]


def test_explanation_of_unknown_lengths_as_text():
    first, second, *_ = str(explain(None, **GPU)).splitlines()
    assert first.startswith(
        "full_matrix: chosen if K of at least 1, and queries at the positions of the last keys"
    )
    assert second == "blocks: otherwise chosen"
    assert explain(3, None, **GPU).otherwise == ()
    assert explain(None, 3, **GPU).otherwise == ("blocks",)


@pytest.mark.parametrize("platform", [CPU, XLA, GPU, JAX, TORCH], ids=str)
@pytest.mark.parametrize(
    "options, requirement",
    [
        ({"return_weights": True}, "no returned weights"),
        ({"has_bias": True}, "no `bias`"),
        ({"ids_rank": 3}, "no `relative_ids`, and one `query_offset` for the batch"),
        ({"offset_per_entry": True}, "no `relative_ids`, and one `query_offset` for the batch"),
        ({"seeded_dropout": False}, "`dropout` is None or an `AttentionDropout`"),
    ],
)
def test_rematerialize_raises_instead_of_using_quadratic_memory(options, requirement, platform):
    fields = {"max_relative_position": 16, **platform, **options, "rematerialize": True}
    with pytest.raises(ValueError, match=r"Memory linear in length \(`rematerialize=True`") as e:
        explain(64, **fields)
    assert "Received: AttentionCall(length_q=64" in str(e.value)
    implementation = {each.name: each for each in dispatch.TABLE}["blocks"]
    assert implementation.match(AttentionCall(64, 64, **fields))[0].text == requirement


def test_block_sizes_depend_on_the_device():
    sizes, call = dispatch.by_name("blocks").sizes, AttentionCall(9, 9, 2)
    for in_loop in (False, True):
        on_cpu, on_gpu = (sizes[x].block_of(call, in_loop=in_loop) for x in ("cpu", "gpu"))
        assert on_cpu < on_gpu


def test_named_implementation_must_meet_requirements_but_not_preferences():
    call = AttentionCall(2000, 2000, 16, **CPU)
    assert dispatch.select(call, "rows")[0].implementation.name == "rows"
    call = dataclasses.replace(call, return_weights=True)
    message = "'full_matrix' requires: no returned weights. Received: AttentionCall"
    with pytest.raises(ValueError, match=message):
        dispatch.select(call, "full_matrix")
    with pytest.raises(
        ValueError, match=r"must be one of scaled_dot_product_attention, .* Received: 'bands'"
    ):
        dispatch.select(call, "bands")
    with pytest.raises(ValueError, match="Received: 'scanned_blocks', which is now 'blocks'"):
        dispatch.select(call, "scanned_blocks")


@pytest.mark.parametrize(
    "batch, distance, expected", [(8, 19, "rows"), (7, 19, "by_id"), (8, 9, "by_id")]
)
def test_many_queries_of_long_tables_share_gathered_rows(batch, distance, expected):
    query = np.zeros((batch, 8, 20, 4), "float32")
    call = AttentionCall.from_arguments(20, 20, distance, query=query, value=query, **TORCH)
    assert dispatch.select(call)[0].implementation.name == expected


def test_attend_runs_the_selected_implementation(run_log, draw):
    arrays = draw(101, 101, 2)
    for options, expected in (
        ({}, "by_id" if keras.backend.backend() == "torch" else "rows"),
        ({"return_weights": False}, CHOSEN_FOR_101_POSITIONS),
        ({"relative_ids": np.zeros((2, 101, 101), "int32")}, "by_id"),
        ({"implementation": "by_id"}, "by_id"),
    ):
        attend(*arrays, **options)
        assert run_log == [expected]
        run_log.clear()
    attend(*arrays[:3])
    assert run_log == ["without_tables"]


def test_portable_applies_inside_its_context_only(run_log, draw):
    arrays = draw(101, 101, 2)
    with portable():
        inside, _ = attend(*arrays, return_weights=False)
    outside, _ = attend(*arrays, return_weights=False)
    assert run_log == ["rows", CHOSEN_FOR_101_POSITIONS]
    np.testing.assert_allclose(inside, outside, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"flash_attention": True},
            r"Expected options among .* Received: flash_attention. .*`rematerialize=True`",
        ),
        ({"backend": "jaxx"}, "Expected `backend` to be one of .* Received: 'jaxx'"),
        ({"device": "cuda"}, "Expected `device` to be one of .* Received: 'cuda'"),
        ({"dtype": "int32"}, "Expected a floating-point `dtype`. Received: int32"),
        ({"key_dim": 0}, "Expected `key_dim` to be a positive integer. Received: key_dim=0"),
        ({"value_dim": -1}, "Expected `value_dim` to be a positive integer"),
        ({"dropout": 1}, "Expected `dropout` to be at least 0 and below 1. Received: dropout=1"),
        ({"ids_rank": 4}, "Expected `ids_rank` to be 2 .* Received: 4"),
        ({"length_q": -5}, "Expected `length_q` to be an integer of .* Received: length_q=-5"),
        ({"length_k": 7.0}, "Expected `length_k` to be an integer of .* Received: length_k=7.0"),
    ],
)
def test_explain_rejects_unknown_options(options, message):
    with pytest.raises(ValueError, match=message):
        explain(**{"length_q": 64} | options)


@pytest.mark.parametrize(
    "options",
    [{"sliding_window": 2.5}, {"query_offset": "left"}, {"query_offset": 2**40}],
    ids=str,
)
def test_explain_raises_the_errors_of_attend(options):
    x = np.ones((1, 1, 64, 2), "float32")
    with pytest.raises(ValueError) as error:
        attend(x, x, x, **options)
    with pytest.raises(ValueError) as same_error:
        explain(64, **options)
    assert str(same_error.value) == str(error.value)


def test_explain_reads_offsets_as_attend():
    assert explain(64, query_offset=np.array([3, 4])).chosen == "by_id"
    assert explain(256, query_offset=0, **TORCH, rematerialize=np.True_).chosen == "flash"


@pytest.mark.parametrize(
    "options",
    [
        {"bias": np.zeros((300, 300), "float32")},
        {"bias": None},
        {"mask": np.ones((300, 300), bool)},
        {"mask": np.ones((2, 1, 300), bool)},
        {"key_mask": np.ones((2, 300), bool), "query_mask": np.ones((2, 300), bool)},
        {"relative_ids": np.zeros((2, 300, 300), "int32")},
        {"relative_ids": [[0] * 300] * 300},
        {"dropout": lambda weights: weights},
        {"dropout": AttentionDropout(0.1, keras.random.SeedGenerator(1))},
        {"dropout": None, "query_offset": 1},
    ],
    ids=lambda options: ", ".join(options),
)
def test_explain_takes_the_arguments_of_attend(options, run_log, draw):
    options = {"return_weights": False, **options}
    attend(*draw(300, 300, 2, value_dim=5), **options)
    assert run_log == [explain(300, max_relative_position=2, key_dim=5, **options).chosen]


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"query_offset": 3}], ids=str)
def test_explain_chooses_by_the_distances_that_occur(options, run_log, draw):
    options = {"return_weights": False, **options}
    attend(*draw(101, 101, 1000), **options)
    explanations = [explain(101, max_relative_position=k, **options) for k in (105, 1000)]
    assert explanations[0] == explanations[1]
    assert run_log == [explanations[0].chosen]


@pytest.mark.parametrize(
    "length, options, skips_keys, saved_matrices",
    [
        (3000, {**TRAINING, "sliding_window": 64}, True, 1),
        (3000, {**CPU, "sliding_window": 64}, True, 0),
        (3000, {**TRAINING, "sliding_window": 64, "return_weights": True}, False, 3),
        (200, {**TRAINING, "sliding_window": 64}, False, 2),
        (3000, TRAINING, False, 1),
        (3000, {**TORCH, "sliding_window": 64}, True, 0),
        (3000, TORCH, False, 0),
        (None, {**XLA, "sliding_window": 64}, True, 0),
    ],
)
def test_explain_says_whether_a_window_saves_time(length, options, skips_keys, saved_matrices):
    explanation = explain(length, **options)
    found = explanation.skips_keys, explanation.saved_matrices
    assert found == (skips_keys, saved_matrices)


def test_conditions_are_true_false_or_a_tensor():
    call = AttentionCall(7, 7, 2, **CPU)
    for result, expected in ((np.False_, False), (np.bool_(True), True), (0, False)):
        assert dispatch.Condition("", lambda _, result=result: result).holds(call) is expected
    unknown = keras.ops.convert_to_tensor(False)
    assert dispatch.Condition("", lambda _: unknown).holds(call) is unknown
