"""A fixture for tests of what signatures compute. Others test their graphs."""

import pytest
import tensorflow as tf


@pytest.fixture
def eager_functions():
    """Runs functions of TensorFlow eagerly: tracing a search takes longer than running it."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)
