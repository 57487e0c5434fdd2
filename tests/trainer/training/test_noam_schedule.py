import keras
import numpy as np
import pytest

from trainer.training.optimizer import NoamSchedule


@pytest.mark.parametrize("step", [0, 1, 1000, 3999, 4000, 4001, 100_000])
def test_noam_schedule_equals_the_formula_of_the_paper(step):
    paper = 512**-0.5 * min(max(step, 1) ** -0.5, step * 4000**-1.5)
    once = NoamSchedule(512, 4000, multiplier=1.0)
    assert float(once(step)) == pytest.approx(paper, rel=1e-6)
    assert float(NoamSchedule(512, 4000)(step)) == pytest.approx(2 * paper, rel=1e-6)


def test_first_update_has_learning_rate_0():
    optimizer = keras.optimizers.SGD(NoamSchedule(4, 2))
    variable = keras.Variable([1.0, 5.0])
    optimizer.apply([np.ones(2, "float32")], [variable])
    np.testing.assert_array_equal(variable.value, [1.0, 5.0])
    optimizer.apply([np.ones(2, "float32")], [variable])
    expected = np.array([1.0, 5.0]) - 2 * 0.5 * 2**-0.5 * 4**-0.5
    np.testing.assert_allclose(variable.value, expected, rtol=1e-6)
