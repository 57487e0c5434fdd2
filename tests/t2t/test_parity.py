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
FORWARD = ["logits, real positions", "logits, padding", "loss", "loss without smoothing"]

QUICK = ("relative_short_k",)
# The excluded models differ from others only in their checkpoints.
SEARCHED = [n for n in NAMES if n not in ("relative_adam_slots", "relative_averaged")]

on_all_models = pytest.mark.parametrize("name", NAMES)
# All models except QUICK run only with the slow tests.
on_quick_models = pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SEARCHED]
)


@pytest.fixture
def case(name):
    return recorded_model(name)


def assert_within_limits(measurements, quantities):
    measurements = list(measurements)
    assert [m.quantity for m in measurements] == quantities
    for measurement in measurements:
        assert measurement.holds, measurement


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


@on_all_models
def test_hparams_equal_the_checkpoint(case):
    assert case.hparams() == case.settings["hparams"]


@on_all_models
def test_logits_and_losses_equal_tensor2tensor(case):
    assert_within_limits(compare.compare_forward(case), FORWARD)


@on_all_models
def test_gradients_equal_tensor2tensor(case):
    assert_within_limits(compare.compare_gradients(case), ["gradients"])


@on_quick_models
def test_beam_search_equals_tensor2tensor(case):
    assert_within_limits(compare.compare_beams(case), ["beam ids", "beam scores"])


@on_quick_models
def test_greedy_search_equals_tensor2tensor(case):
    relative = case.model.config.relative
    assert_within_limits(
        compare.compare_greedy(case),
        ["greedy ids"] if relative else ["greedy ids", "greedy scores"],
    )


@on_quick_models
def test_default_search_is_independent_of_the_batch(case):
    assert_within_limits(
        compare.compare_batches(case),
        ["ids, single vs. batch", "scores, single vs. batch"],
    )


@on_all_models
def test_weights_round_trip_to_the_checkpoint(case):
    assert_within_limits(compare.compare_weights(case), ["weights that differ"])
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
