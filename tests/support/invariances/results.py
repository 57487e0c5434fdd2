"""Outputs and gradients of a call, as arrays by name, on every backend of Keras."""

import keras
import numpy as np
from invariances.entries import BACKEND, DTYPES
from keras import ops


def plain(entry, arguments):
    """Returns contiguous tensors of the plain dtypes, with the same values, and the numbers."""
    return {
        name: value if entry.kind(name) == "number" else plain_tensor(value, entry.kind(name))
        for name, value in arguments.items()
    }


def plain_tensor(values, kind):
    """Returns a contiguous tensor of a copy of values, in the plain dtype of its kind."""
    return ops.convert_to_tensor(np.array(values, DTYPES[kind], order="C"))


def results(entry, subject, arguments, function=None):
    """Returns the outputs, and the gradients of weights and of all inputs that are float tensors.

    Args:
        entry: an `Entry`.
        subject: a `Subject` of the entry.
        arguments: as those of `Entry.arguments`.
        function: computes the outputs instead of the function of the subject. Default: None.

    Returns:
        Arrays by name: "outputs", "d NAME" of an input, "d weight NAME". Gradients that do not
        exist are zeros.
    """
    arguments = dict(arguments)
    cotangent = arguments.pop("cotangent", None)
    function = subject if function is None else function
    floats = [
        name for name, x in arguments.items() if entry.kind(name) == "float" and ops.is_tensor(x)
    ]
    weights = {} if cotangent is None else subject.weights()
    calculate = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[BACKEND]
    outputs, gradients = calculate(function, arguments, floats, weights, cotangent)
    names = [*(f"d {name}" for name in floats), *(f"d weight {name}" for name in weights)]
    found = {"outputs": _to_numpy(outputs)}
    if cotangent is not None:
        found |= dict(zip(names, map(_to_numpy, gradients), strict=True))
    return found


def _to_numpy(x):
    # TensorFlow's gradients of a gather are sparse.
    array = ops.convert_to_numpy(ops.convert_to_tensor(x))
    return array.astype("float32") if array.dtype.name == "bfloat16" else array


def _tensorflow(function, arguments, floats, weights, cotangent):
    import tensorflow as tf

    sources = [arguments[name] for name in floats] + [v.value for v in weights.values()]
    with tf.GradientTape() as tape:
        tape.watch([arguments[name] for name in floats])
        outputs = function(**arguments)
    if cotangent is None:
        return outputs, []
    zero = tf.UnconnectedGradients.ZERO
    return outputs, tape.gradient(outputs, sources, tf.cast(cotangent, outputs.dtype), zero)


def _jax(function, arguments, floats, weights, cotangent):
    import jax

    def call(tensors, values):
        with keras.StatelessScope(state_mapping=list(zip(weights.values(), values))):
            return function(**arguments | tensors)

    if cotangent is None:
        return function(**arguments), []
    tensors = {name: arguments[name] for name in floats}
    values = [v.value for v in weights.values()]
    outputs, pull_back = jax.vjp(call, tensors, values)
    d_tensors, d_values = pull_back(jax.numpy.asarray(cotangent, outputs.dtype))
    return outputs, [*(d_tensors[name] for name in floats), *d_values]


def _torch(function, arguments, floats, weights, cotangent):
    import torch

    if cotangent is None:
        return function(**arguments), []
    # `detach` keeps the strides.
    leaves = {name: arguments[name].detach().requires_grad_() for name in floats}
    sources = [*leaves.values(), *(getattr(p, "value", p) for p in weights.values())]
    outputs = function(**arguments | leaves)
    for x in sources:
        x.grad = None
    # Not `torch.autograd.grad`, which a checkpoint with use_reentrant=True refuses.
    if outputs.requires_grad:
        outputs.backward(cotangent.to(outputs.dtype))
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in sources]
    return outputs.detach(), gradients


def assert_same(found, expected, tolerance=2e-5):
    """Asserts that two dicts of arrays are close, relative to the largest output or gradient.

    Gradients of biases of keys are 0, except for rounding.
    """
    assert found.keys() == expected.keys()
    gradients = [np.abs(x).max(initial=0) for name, x in expected.items() if name != "outputs"]
    scales = {"outputs": np.abs(expected["outputs"]).max(initial=1)}
    for name, x in expected.items():
        atol = tolerance * scales.get(name, max(gradients, default=1))
        np.testing.assert_allclose(found[name], x, rtol=0, atol=atol, err_msg=name)


def with_flipped_heads(entry):
    """Returns a new subject of an entry whose weights have their heads in reversed order."""
    subject = entry.make()
    for name, weight in subject.weights().items():
        values = entry.flip_heads(name, _to_numpy(weight))
        if isinstance(weight, keras.Variable):
            weight.assign(values)
        else:
            weight.data.copy_(plain_tensor(values, "float"))
    return subject
