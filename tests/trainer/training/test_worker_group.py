import pytest
import tensorflow as tf

from trainer.training.strategy import WorkerGroup, WorkerLostError


@pytest.fixture
def single():
    return WorkerGroup(tf.distribute.get_strategy())


class Second(WorkerGroup):
    """The second of two workers. The chief's value is always 7."""

    def __init__(self):
        self.size, self.index = 2, 1

    def from_chief(self, value):
        return 7.0


def test_single_process_is_the_chief(single):
    assert (single.size, single.index, single.is_chief) == (1, 0, True)
    assert single.from_chief(2.5) == 2.5 and single.from_chief(None) is None
    with single.chief_first():
        single.wait()
    single.check_same(3, "the same")


def test_value_that_differs_from_the_chief_raises():
    Second().check_same(7, "the same step")
    message = "Expected the same step on all workers. Received: 8 on worker 1, 7 on worker 0"
    with pytest.raises(ValueError, match=message):
        Second().check_same(8, "the same step")


TENSORFLOW_MESSAGE = """Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
  File "train.py", line 33, in <module>

Collective ops is aborted by: failed to connect to all addresses
The error could be from a previous operation.
\t [[{{node CollectiveReduceV2}}]] [Op:__inference_1]"""


def test_lost_worker_raises():
    error = tf.errors.UnavailableError(None, None, TENSORFLOW_MESSAGE)
    message = (
        r"Lost connection to a worker \(detected by worker 1 of 2: UnavailableError: Collective "
        r"ops is aborted by: failed to connect to all addresses The error could be from a previous "
        r"operation.\). Start again."
    )
    with pytest.raises(WorkerLostError, match=message):
        with Second().detecting_lost_workers(lambda: "Start again."):
            raise error


def test_other_errors_are_not_converted(single):
    with pytest.raises(tf.errors.UnavailableError):
        with single.detecting_lost_workers(lambda: ""):
            raise tf.errors.UnavailableError(None, None, "")
    with pytest.raises(KeyError):
        with Second().detecting_lost_workers(lambda: ""):
            raise KeyError
