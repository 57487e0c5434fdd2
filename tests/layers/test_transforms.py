"""Transforms of each backend: vectorized calls, derivatives, and traced or compiled code.

Each is compared with plain calls and gradients. `docs/guides/from_keras.md` lists what these layers
can't do.
"""

import os

import keras
import numpy as np
import pytest
from keras import ops
from layer_cases import CASES, LayerCase, random_inputs
from small_transformers import small_config
from subprocesses import ROOT, environment, run_python

from t2t_relpos import CausalLM, Transformer
from t2t_relpos.attention import portable

BACKEND = keras.backend.backend()


class ModelCase(LayerCase):
    """A model whose input is a dict of ids."""

    def call(self, function, inputs, masks=False):
        return function({"inputs": inputs["ids"], "targets": inputs["y_ids"]})


LAYERS = {
    **CASES,
    "learned_positions": CASES["learned_positions"]._replace(
        make=lambda: CASES["learned_positions"].make(max_length=300)
    ),
    "relative_causal": CASES["relative"]._replace(masks={}, others={"use_causal_mask": True}),
    "language_model": LayerCase(lambda: CausalLM(13, 1, 6, 7, 2, max_relative_position=3), "ids"),
    "transformer": ModelCase(lambda: Transformer(small_config()), "ids y_ids"),
}
LENGTHS = [(name, length) for name in LAYERS for length in (20, 300)]
# Other implementations than at these lengths.
LENGTHS += [("relative_flash", 6), ("relative_causal", 150), ("relative", 200)]
# The other lengths are slow tests.
FAST = {
    "tensorflow": [("relative", 20)],
    "jax": [("relative", 20), ("relations", 20), ("relative_causal", 150)],
    "torch": [each for each in LENGTHS if each[1] <= 20]
    + [(name, 300) for name in ("relative", "relative_per_head", "relative_window", "v2")]
    + [("relative_causal", 150), ("language_model", 300)],
}[BACKEND]
each_layer = pytest.mark.parametrize(
    ("name", "length"),
    [each if each in FAST else pytest.param(*each, marks=pytest.mark.slow) for each in LENGTHS],
)


class Example:
    """A layer as a function of its weights and inputs, with values of both.

    Args:
        name: name of the layer in LAYERS.
        length: number of positions.
        rng: a generator of NumPy.
    """

    def __init__(self, name, length, rng):
        self._case, self.name = LAYERS[name], name
        self._masks = bool(self._case.masks)
        sizes = dict.fromkeys("TSL", length) | {"H": 4, "W": length // 4}
        arrays = random_inputs(self._case.input_names(self._masks), rng, sizes)
        inputs = {key: ops.convert_to_tensor(x[:2]) for key, x in arrays.items()}
        self.layer = self._case.make()
        self.call(self.layer, inputs)
        # Larger than at the start, so that differences of gradients are clear.
        for weight in self.layer.trainable_variables:
            noise = 0.3 * rng.normal(size=weight.shape).astype("float32")
            weight.assign(ops.convert_to_numpy(weight) + noise)
        values = map(ops.convert_to_numpy, self.layer.trainable_variables)
        weights = [ops.convert_to_tensor(x) for x in values]
        self.inputs = inputs
        floats = {key: x for key, x in inputs.items() if arrays[key].dtype == "float32"}
        self.others = {key: x for key, x in inputs.items() if key not in floats}
        # The arguments of `loss` for which there are gradients.
        self.arguments = weights, floats

    def call(self, function, inputs):
        return self._case.call(function, inputs, self._masks)

    def outputs(self, weights, inputs):
        values = [variable.value for variable in self.layer.non_trainable_variables]

        def call(*args, **kwargs):
            return self.layer.stateless_call(list(weights), values, *args, **kwargs)[0]

        return self.call(call, inputs)

    def outputs_of_entry(self, weights, inputs):
        """Returns the outputs of one batch entry."""
        outputs = self.outputs(weights, {key: x[None] for key, x in inputs.items()})
        return outputs if self.name == "position_embedding" else outputs[0]

    def loss(self, weights, floats, others=None):
        others = self.others if others is None else others
        return ops.sum(self.outputs(weights, floats | others) ** 2)

    def loss_of_entry(self, weights, floats, others):
        return ops.sum(self.outputs_of_entry(weights, floats | others) ** 2)

    def squared_gradients(self, weights, floats):
        """Returns the sum of the squares of the gradients, on JAX."""
        gradients = jax.grad(self.loss, argnums=(0, 1))(weights, floats)
        return sum(ops.sum(x**2) for x in jax.tree.leaves(gradients))

    def entry(self, number):
        """Returns the arguments of `loss_of_entry` for a batch entry."""
        weights, floats = self.arguments
        return weights, *({k: x[number] for k, x in y.items()} for y in (floats, self.others))


@pytest.fixture
def example(name, length, rng):
    return Example(name, length, rng)


def skip_without_batch_axis(example):
    if example.name == "position_embedding":
        pytest.skip("outputs without a batch axis")


def assert_close(found, expected):
    """Asserts that nested tensors are close, relative to the largest entry of all.

    The gradients of biases of keys are zero, except for rounding.
    """
    found, expected = (
        [ops.convert_to_numpy(x) for x in keras.tree.flatten(nested) if x is not None]
        for nested in (found, expected)
    )
    assert [x.shape for x in found] == [x.shape for x in expected]
    scale = max((np.abs(x).max() for x in expected), default=0)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * scale)


def assert_sum_close(found, nested):
    """Asserts that a derivative along a tangent of ones is the sum of nested gradients."""
    arrays = [ops.convert_to_numpy(x).astype("float64") for x in keras.tree.flatten(nested)]
    atol = 1e-5 * sum(np.abs(x).sum() for x in arrays)
    np.testing.assert_allclose(found, sum(x.sum() for x in arrays), rtol=0, atol=atol)


if BACKEND == "torch":
    import torch
    from torch._subclasses import FakeTensorMode
    from torch.func import grad, jvp, vmap

    # A kernel of PyTorch has no batching rule.
    ignore_slow_kernel = pytest.mark.filterwarnings("ignore:There is a performance drop")
    # Dynamo warns of graph breaks in Keras's code, and of the gradients that it reads.
    ignore_warnings_of_dynamo = pytest.mark.filterwarnings("ignore::UserWarning")

    def plain_gradients(loss, arguments):
        """Returns the gradients of nested tensors, zeros where there are none."""
        copies = keras.tree.map_structure(lambda x: x.detach().requires_grad_(), arguments)
        flat = keras.tree.flatten(copies)
        gradients = torch.autograd.grad(loss(*copies), flat, allow_unused=True)
        zeros = [torch.zeros_like(x) if g is None else g for x, g in zip(flat, gradients)]
        return keras.tree.pack_sequence_as(arguments, zeros)

    @each_layer
    def test_torch_grad(example):
        found = grad(example.loss, argnums=(0, 1))(*example.arguments)
        assert_close(found, plain_gradients(example.loss, example.arguments))

    @pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
    @each_layer
    def test_torch_jvp(example):
        tangents = keras.tree.map_structure(torch.ones_like, example.arguments)
        _, found = jvp(example.loss, example.arguments, tangents)
        assert_sum_close(found, plain_gradients(example.loss, example.arguments))

    @ignore_slow_kernel
    @each_layer
    def test_torch_vmap(example):
        skip_without_batch_axis(example)
        weights, _ = example.arguments
        found = vmap(example.outputs_of_entry, in_dims=(None, 0))(weights, example.inputs)
        assert_close(found, example.outputs(weights, example.inputs))

    @ignore_slow_kernel
    @each_layer
    def test_torch_gradients_of_entries(example):
        """Gradients of single examples, as for differential privacy."""
        of_entries = vmap(grad(example.loss_of_entry, argnums=(0, 1)), in_dims=(None, 0, 0))
        found = keras.tree.flatten(of_entries(*example.arguments, example.others))
        for number in range(2):
            *arguments, others = example.entry(number)
            loss = lambda *arguments: example.loss_of_entry(*arguments, others)
            assert_close([x[number] for x in found], plain_gradients(loss, tuple(arguments)))

    @each_layer
    def test_torch_batch_of_output_gradients(example, rng):
        copies = keras.tree.map_structure(lambda x: x.detach().requires_grad_(), example.arguments)
        weights, floats = copies
        outputs = example.outputs(weights, floats | example.others)
        d_outputs = torch.from_numpy(rng.normal(size=(2, *outputs.shape)).astype("float32"))
        inputs, options = keras.tree.flatten(copies), {"retain_graph": True, "allow_unused": True}
        found = torch.autograd.grad(outputs, inputs, d_outputs, is_grads_batched=True, **options)
        for number, one in enumerate(d_outputs):
            expected = torch.autograd.grad(outputs, inputs, one, **options)
            assert_close([None if x is None else x[number] for x in found], expected)

    @each_layer
    def test_torch_fake_tensors(example):
        weights, _ = example.arguments
        outputs = example.outputs(weights, example.inputs)
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        inputs = {key: mode.from_tensor(x) for key, x in example.inputs.items()}
        with mode:
            found = example.outputs(weights, inputs)
        assert (found.shape, found.dtype) == (outputs.shape, outputs.dtype)

    @each_layer
    def test_torch_export(example):
        class Module(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = example.layer

            def forward(self, inputs):
                return example.call(self.layer, inputs)

        program = torch.export.export(Module(), (example.inputs,)).module()
        expected = example.outputs(example.arguments[0], example.inputs)
        assert_close(program(example.inputs).detach(), expected)

    @pytest.mark.slow
    @ignore_warnings_of_dynamo
    @pytest.mark.parametrize("length", [20, 300])
    @pytest.mark.parametrize("name", ["relative", "relations", "language_model"])
    def test_torch_compile(example):
        torch.compiler.reset()
        compiled = torch.compile(example.layer, backend="eager")
        expected = example.outputs(example.arguments[0], example.inputs)
        assert_close(example.call(compiled, example.inputs).detach(), expected)


if BACKEND == "jax":
    import jax
    from jax.sharding import PartitionSpec

    @each_layer
    def test_jax_transforms(example):
        weights, floats = example.arguments
        found = jax.jit(lambda *args: jax_transforms(example, *args))(weights, floats)
        gradients = jax.jit(jax.grad(example.loss, argnums=(0, 1)))(weights, floats)
        assert_close(found.pop("checkpoint"), gradients)
        of_entry = jax.jit(jax.grad(example.loss_of_entry, argnums=(0, 1)))
        of_entries = found.pop("vmap of grad")
        for number in range(2):
            one = jax.tree.map(lambda x: x[number], of_entries)
            assert_close(one, of_entry(*example.entry(number)))
        with portable():
            second = jax.jit(jax.grad(example.squared_gradients))(weights, floats)
        assert_close(found.pop("grad of grad"), second)
        outputs = jax.jit(example.outputs)(weights, example.inputs)
        if "grad of shard_map" in found:
            assert_close(found.pop("grad of shard_map"), gradients)
        for values in found.values():
            assert_close(values, outputs)

    def jax_transforms(example, weights, floats):
        """Returns a dict of the results of all transforms."""
        inputs = floats | example.others
        results = {
            "checkpoint": jax.grad(jax.checkpoint(example.loss), argnums=(0, 1))(weights, floats),
            "vmap of grad": jax.vmap(
                jax.grad(example.loss_of_entry, argnums=(0, 1)), in_axes=(None, 0, 0)
            )(weights, floats, example.others),
            "grad of grad": jax.grad(example.squared_gradients)(weights, floats),
        }
        if example.name == "position_embedding":
            return results
        step = lambda carry, entry: (carry, example.outputs_of_entry(weights, entry))
        by_batch = PartitionSpec("batch")
        sharded_outputs = jax.shard_map(
            example.outputs,
            mesh=jax.sharding.Mesh(jax.devices()[:1], "batch"),
            in_specs=(PartitionSpec(), by_batch),
            out_specs=by_batch,
        )

        def sharded_loss(weights, floats):
            return ops.sum(sharded_outputs(weights, floats | example.others) ** 2)

        return results | {
            "vmap": jax.vmap(example.outputs_of_entry, in_axes=(None, 0))(weights, inputs),
            "scan": jax.lax.scan(step, 0, inputs)[1],
            "shard_map": sharded_outputs(weights, inputs),
            "grad of shard_map": jax.grad(sharded_loss, argnums=(0, 1))(weights, floats),
        }


if BACKEND == "tensorflow":
    import tensorflow as tf

    # With oneDNN, TensorFlow 2.21 corrupts memory in `tf.vectorized_map` and `jacobian`, also with
    # Keras's layers (tensorflow/tensorflow#117700).
    HAS_ONEDNN = os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "0"
    without_onednn = pytest.mark.skipif(HAS_ONEDNN, reason="requires TF_ENABLE_ONEDNN_OPTS=0")

    def plain_gradients(function, *arguments):
        """Returns the gradients of tensors, zeros where there are none."""
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            result = function(*arguments)
        return tape.gradient(result, arguments, unconnected_gradients="zero")

    def loss_of_flat(example):
        """Returns (the loss as a function of tensors, the tensors)."""
        structure = example.arguments
        loss = lambda *flat: example.loss(*keras.tree.pack_sequence_as(structure, flat))
        return loss, keras.tree.flatten(structure)

    @each_layer
    def test_tensorflow_recompute_grad(example):
        loss, arguments = loss_of_flat(example)
        found = plain_gradients(tf.recompute_grad(loss), *arguments)
        assert_close(found, plain_gradients(loss, *arguments))

    @each_layer
    def test_tensorflow_forward_accumulator(example):
        loss, arguments = loss_of_flat(example)
        tangents = [tf.ones_like(x) for x in arguments]
        with tf.autodiff.ForwardAccumulator(arguments, tangents) as accumulator:
            result = loss(*arguments)
        # The rows of IndexedSlices are added in float64: TensorFlow adds the 45,000 equal rows of
        # an entry of a table one by one, in float32.
        gradients = [getattr(x, "values", x) for x in plain_gradients(loss, *arguments)]
        assert_sum_close(accumulator.jvp(result), gradients)

    @without_onednn
    @each_layer
    def test_tensorflow_jacobian(example):
        weights, _ = example.arguments
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(weights)
            outputs = tf.reshape(example.outputs(weights, example.inputs), (-1,))
            outputs = tf.stack([tf.reduce_sum(outputs[::3]), tf.reduce_sum(outputs[1::3])])
            entries = tf.unstack(outputs)
        found = tape.jacobian(outputs, weights, unconnected_gradients="zero")
        for number, entry in enumerate(entries):
            expected = tape.gradient(entry, weights, unconnected_gradients="zero")
            assert_close([x[number] for x in found], expected)

    @without_onednn
    @each_layer
    def test_tensorflow_vectorized_map(example):
        skip_without_batch_axis(example)
        weights, _ = example.arguments
        found = tf.vectorized_map(lambda x: example.outputs_of_entry(weights, x), example.inputs)
        assert_close(found, example.outputs(weights, example.inputs))

    @without_onednn
    @each_layer
    def test_tensorflow_gradients_of_entries(example):
        weights, _ = example.arguments

        def gradients(inputs):
            loss = lambda *weights: example.loss_of_entry(weights, inputs, {})
            return plain_gradients(loss, *weights)

        found = tf.vectorized_map(gradients, example.inputs)
        for number in range(2):
            expected = gradients({key: x[number] for key, x in example.inputs.items()})
            assert_close([x[number] for x in found], expected)

    @pytest.mark.slow
    @pytest.mark.skipif(not HAS_ONEDNN, reason="runs the other tests")
    def test_tensorflow_transforms_without_onednn():
        names = "relative-20 or relative_causal-150 or relative_flash-300"
        run_python(
            *("-m", "pytest", "-q", "-m", "slow or not slow", __file__),
            # The gradients of entries are those of a vectorized map.
            *("-k", f"({names}) and entries or relative_flash-300 and jacobian"),
            env=environment(TF_ENABLE_ONEDNN_OPTS="0"),
            cwd=ROOT,
        )
