"""Compares our Transformer with tensor2tensor results for the same checkpoints.

The results are recorded in tests/reference/models.
"""

import pathlib

import compare_models as compare
import numpy as np
import pytest
from recorded_model import RecordedModel, recorded_model

RECORDED = pathlib.Path(__file__).parents[1] / "reference" / "models"
NAMES = sorted(path.parent.name for path in RECORDED.glob("*/model.json"))
# The excluded models differ from others only in their checkpoints.
SEARCHED = [n for n in NAMES if n not in ("relative_adam_slots", "relative_averaged")]
QUICK = "relative_short_k"
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
SEARCHES = {
    compare.compare_beams: ["beam ids", "beam scores"],
    compare.compare_greedy: ["greedy ids", "greedy scores"],
    compare.compare_batches: ["ids, single vs. batch", "scores, single vs. batch"],
}


def check(name, comparison, quantities):
    case = recorded_model(name)
    if case.model.config.relative:
        # tensor2tensor's greedy search returns no scores for these models.
        quantities = [quantity for quantity in quantities if quantity != "greedy scores"]
    measurements = list(comparison(case))
    assert [m.quantity for m in measurements] == quantities
    for measurement in measurements:
        assert measurement.holds, measurement


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda function: function.__name__)
def test_model_equals_tensor2tensor(name, comparison):
    check(name, comparison, COMPARISONS[comparison])


# All models except one run only with the slow tests.
@pytest.mark.parametrize(
    "name", [n if n == QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SEARCHED]
)
@pytest.mark.parametrize("comparison", SEARCHES, ids=lambda function: function.__name__)
def test_searches_equal_tensor2tensor(name, comparison):
    check(name, comparison, SEARCHES[comparison])


def test_compare_covers_all_recorded_models():
    assert compare.NAMES == NAMES
    assert len(NAMES) == 10


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


def test_compare_detects_a_wrong_weight():
    case = RecordedModel("relative_short_k")
    table = case.model.decoder_layers[1].self_attention.value_embedding.table
    table.assign(np.array(table.value) * 1.01)
    for measurements in (
        compare.compare_forward(case),
        compare.compare_gradients(case),
        compare.compare_weights(case),
    ):
        assert not next(measurements).holds
