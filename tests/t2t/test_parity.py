"""Compares our models with tensor2tensor results for the same checkpoints.

The results are recorded in tests/reference/models.
"""

import pathlib

import compare_models as compare
import numpy as np
import pytest
from recorded_model import RecordedModel, recorded_model

from t2t_relpos.t2t import decode_eighth_power

RECORDED = pathlib.Path(__file__).parents[1] / "reference" / "models"
NAMES = sorted(path.parent.name for path in RECORDED.glob("*/model.json"))
# The excluded models differ from others only in their checkpoints.
CHECKPOINTS = ("relative_adam_slots", "relative_averaged", "language_bfloat16")
SEARCHED = [n for n in NAMES if n not in CHECKPOINTS]
TRANSLATION = [n for n in SEARCHED if not n.startswith("language_")]
LANGUAGE = [n for n in SEARCHED if n.startswith("language_")]
QUICK = ("relative_short_k", "language_v2_shared_values")
COMPARISONS = {
    compare.compare_forward: [
        "logits, real positions",
        "logits, padding",
        "loss",
        "loss without smoothing",
    ],
    compare.compare_gradients: ["gradients"],
    compare.compare_weights: ["weights that differ"],
}
BEAMS = ["beam ids", "beam scores"]
SEARCHES = {
    compare.compare_beams: BEAMS,
    compare.compare_greedy: ["greedy ids", "greedy scores"],
    compare.compare_batches: ["ids, single vs. batch", "scores, single vs. batch"],
}
LANGUAGE_SEARCHES = {
    compare.compare_beams: BEAMS,
    compare.compare_greedy: ["greedy ids"],
    compare.compare_caches: ["ids, cached vs. uncached", "scores, cached vs. uncached"],
}


def check(case, comparison, quantities):
    measurements = list(comparison(case))
    assert [m.quantity for m in measurements] == quantities
    for measurement in measurements:
        assert measurement.holds, measurement


def slow_except_quick(names):
    """Returns parameters. All models except one of each kind run only with the slow tests."""
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda function: function.__name__)
def test_model_equals_tensor2tensor(name, comparison):
    check(recorded_model(name), comparison, COMPARISONS[comparison])


@pytest.mark.parametrize("name", slow_except_quick(TRANSLATION))
@pytest.mark.parametrize("comparison", SEARCHES, ids=lambda function: function.__name__)
def test_searches_equal_tensor2tensor(name, comparison):
    case, quantities = recorded_model(name), SEARCHES[comparison]
    if case.model.config.relative:
        # tensor2tensor's greedy search returns no scores for these models.
        quantities = [quantity for quantity in quantities if quantity != "greedy scores"]
    check(case, comparison, quantities)


# Tracing a graph for each length takes longer than the searches.
@pytest.mark.usefixtures("eager_searches")
@pytest.mark.parametrize("name", slow_except_quick(LANGUAGE))
@pytest.mark.parametrize("comparison", LANGUAGE_SEARCHES, ids=lambda function: function.__name__)
def test_continuations_equal_tensor2tensor(name, comparison):
    case, quantities = recorded_model(name), LANGUAGE_SEARCHES[comparison]
    if case.model.config.relative_v2 and comparison is compare.compare_beams:
        # tensor2tensor's beam search does not run for these models.
        quantities = []
    check(case, comparison, quantities)


def test_compare_covers_all_recorded_models():
    assert compare.NAMES == NAMES
    assert len(TRANSLATION) == 9
    assert len(LANGUAGE) == 9
    assert len(NAMES) == 9 + 9 + len(CHECKPOINTS)


def test_limits_equal_the_documented_values():
    assert compare.LIMITS == {
        "logits, real positions": 1e-5,
        "logits, padding": 1e-5,
        "loss": 1e-6,
        "loss without smoothing": 1e-6,
        "gradients": 1e-4,
        "beam ids": 0,
        "beam scores": 1e-4,
        "greedy ids": 0,
        "greedy scores": 1e-4,
        "weights that differ": 0,
        "ids, single vs. batch": 0,
        "scores, single vs. batch": 1e-4,
        "ids, cached vs. uncached": 0,
        "scores, cached vs. uncached": 1e-4,
    }


@pytest.mark.parametrize("name", NAMES)
def test_hparams_and_number_of_weights_equal_the_checkpoint(name):
    case = recorded_model(name)
    assert case.hparams() == case.settings["hparams"]
    weights = sum(name.startswith("transformer/") and "/Adam" not in name for name in case.arrays)
    assert next(compare.compare_weights(case)).count == weights


def test_checkpoints_include_slots_and_an_average():
    for name in ("relative_adam_slots", "relative_averaged"):
        assert any(key.endswith("/Adam_1") for key in recorded_model(name).arrays)
    assert recorded_model("relative_averaged").arrays["global_step"] == 0


def test_decode_eighth_power_equals_tensor2tensor():
    case = recorded_model("language_bfloat16")
    weights = case.weights()
    assert weights.keys() == case.arrays.keys() - {"global_step"}
    for name, expected in weights.items():
        assert case.arrays[name].dtype.name == "bfloat16"
        np.testing.assert_array_equal(decode_eighth_power(case.arrays[name]), expected)
    table = weights["transformer/symbol_modality_37_16/shared/weights_0"]
    assert 0.01 < np.abs(table).max() < 1 and (table < 0).any()


@pytest.mark.parametrize("name", ["relative_short_k", "language_v2_wide_heads"])
def test_compare_detects_a_wrong_weight(name):
    case = RecordedModel(name)
    if case.is_language_model:
        table = case.model.blocks[1].self_attention.value_embedding
    else:
        table = case.model.decoder_layers[1].self_attention.value_embedding.table
    table.assign(np.array(table.value) * 1.01)
    for measurements in (
        compare.compare_forward(case),
        compare.compare_gradients(case),
        compare.compare_weights(case),
    ):
        assert not next(measurements).holds


def test_compare_detects_a_wrong_continuation(monkeypatch):
    case = RecordedModel("language_v2_short_k")
    record = case.recorded("decoded")
    record["greedy_1_3_ids"][2, 1] += 1
    monkeypatch.setattr(case, "recorded", lambda file: record)
    prompts = [("greedy_1_3", record["inputs"][:, :1], 3)]
    monkeypatch.setattr(compare, "prompts_of", lambda case: prompts)
    measurement = next(compare.compare_greedy(case))
    assert (measurement.error, measurement.count) == (1, 5)
