import keras
import numpy as np
import pytest

from trainer.training.schedules import NoamSchedule


@pytest.mark.parametrize("step", [0, 1, 3999, 4000, 4001, 100000])
def test_noam_schedule_equals_the_formula(step):
    expected = 2 * min(1, step / 4000) * max(step, 4000) ** -0.5 * 512**-0.5
    assert float(NoamSchedule(512, 4000)(step)) == pytest.approx(expected, rel=1e-6)


def test_noam_schedule_with_multiplier_1_equals_the_paper():
    schedule = NoamSchedule(512, 4000, multiplier=1.0)
    for step in (1, 1000, 4000, 30000):
        assert float(schedule(step)) == pytest.approx(
            512**-0.5 * min(step**-0.5, step * 4000**-1.5), rel=1e-6
        )


def test_first_update_has_learning_rate_0():
    optimizer = keras.optimizers.SGD(NoamSchedule(4, 2))
    variable = keras.Variable([1.0, 5.0])
    optimizer.apply([np.ones(2, "float32")], [variable])
    np.testing.assert_array_equal(variable.value, [1.0, 5.0])
    optimizer.apply([np.ones(2, "float32")], [variable])
    np.testing.assert_allclose(
        variable.value, np.array([1.0, 5.0]) - 2 * 0.5 * 2**-0.5 * 4**-0.5, rtol=1e-6
    )


def test_schedule_is_serialized_with_the_optimizer():
    optimizer = keras.optimizers.Adam(NoamSchedule(7, 13, multiplier=1.5))
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert again._learning_rate.get_config() == {
        "model_width": 7,
        "warmup_steps": 13,
        "multiplier": 1.5,
    }


@pytest.mark.parametrize("name", ["model_width", "warmup_steps", "multiplier"])
def test_arguments_that_are_not_positive_raise(name):
    with pytest.raises(ValueError, match=f"Expected {name} to be positive. Received: 0"):
        NoamSchedule(**({"model_width": 2, "warmup_steps": 3} | {name: 0}))
