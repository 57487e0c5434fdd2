"""Properties of TensorFlow, all uses of its private API, and functions for other modules.

Modules that must not import TensorFlow call it through this module.

If TensorFlow changes its private API, these functions raise an ImportError with the version number.
"""

import functools

import tensorflow as tf

# Largest number of bodies that `shared_function` keeps for one function.
MAX_BODIES = 64


def is_compiled_by_xla():
    """Returns whether the current graph is being traced for XLA."""
    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError as error:
        raise _changed("control_flow_util.GraphOrParentsInXlaContext") from error
    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def device():
    """Returns the kind of device that TensorFlow computes on: "cpu", "gpu" or "tpu"."""
    kinds = (kind for kind in ("TPU", "GPU") if tf.config.get_visible_devices(kind))
    return next(kinds, "CPU").lower()


def as_tensor(x):
    """Returns the value of a variable, or a tensor itself."""
    return tf.convert_to_tensor(x)


def shape(x):
    """Returns the shape of a tensor as a tensor `[rank]`; the rank may be unknown."""
    return tf.shape(x)


def shared_function(function):
    """Traces a function once per signature and never inlines it.

    All layers of a graph then share one body, which keeps graphs small. In eager mode the Python
    function runs. Arguments are tensors and NamedTuples of tensors and Python constants.

    At most `MAX_BODIES` bodies are kept for later graphs. A graph keeps the bodies that it uses.
    """
    traced = _never_inlined(function)

    @functools.wraps(function)
    def call(*args):
        nonlocal traced
        if tf.executing_eagerly():
            return function(*args)
        if traced.experimental_get_tracing_count() >= MAX_BODIES:
            traced = _never_inlined(function)
        return traced(*args)

    return call


def _never_inlined(function):
    try:
        return tf.function(function, autograph=False, experimental_attributes={"_noinline": True})
    except (TypeError, ValueError) as error:
        raise _changed('experimental_attributes={"_noinline": True} of tf.function') from error


def _changed(name):
    return ImportError(
        f"{name} is missing or different in TensorFlow {tf.__version__}. Install a version of "
        "TensorFlow that setup.cfg allows."
    )
