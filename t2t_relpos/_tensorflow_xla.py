"""What TensorFlow says nowhere in public."""

import tensorflow as tf
from tensorflow.python.ops import control_flow_util


def is_compiled():
    """Whether XLA compiles what is being traced: it takes no sizes that change in a loop."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
