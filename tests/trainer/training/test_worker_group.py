import pytest
import tensorflow as tf

from trainer.training.worker_group import WorkerGroup, WorkerLostError


@pytest.fixture
def only():
    return WorkerGroup(tf.distribute.get_strategy())


class Second(WorkerGroup):
    """The second of two workers, whose chief says 7."""

    def __init__(self):
        self.size, self.index = 2, 1

    def from_chief(self, value):
        return 7.0


def test_a_process_alone_is_the_chief(only):
    assert (only.size, only.index, only.is_chief) == (1, 0, True)
    assert only.from_chief(2.5) == 2.5 and only.from_chief(None) is None
    with only.chief_first():
        only.wait()
    only.check_same(3, "the same")


def test_number_that_is_not_the_chiefs():
    Second().check_same(7, "the same step")
    with pytest.raises(
        ValueError,
        match="Expected the same step on all workers. Received: 8 on worker 1, 7 on worker 0",
    ):
        Second().check_same(8, "the same step")


TENSORFLOW_SAYS = """Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
  File "train.py", line 33, in <module>

Collective ops is aborted by: failed to connect to all addresses
The error could be from a previous operation.
\t [[{{node CollectiveReduceV2}}]] [Op:__inference_1]"""


def test_worker_that_is_gone():
    error = tf.errors.UnavailableError(None, None, TENSORFLOW_SAYS)
    message = (
        r"Expected all 2 workers until the run ends. Received: one that is gone, as worker 1 "
        r"notices \(UnavailableError: Collective ops "
        r"is aborted by: failed to connect to all addresses The error could be from a previous "
        r"operation.\). Start again."
    )
    with pytest.raises(WorkerLostError, match=message):
        with Second().detecting_lost_workers(lambda: "Start again."):
            raise error


def test_other_errors_stay_what_they_are(only):
    with pytest.raises(tf.errors.UnavailableError):
        with only.detecting_lost_workers(lambda: ""):
            raise tf.errors.UnavailableError(None, None, "")
    with pytest.raises(KeyError):
        with Second().detecting_lost_workers(lambda: ""):
            raise KeyError
