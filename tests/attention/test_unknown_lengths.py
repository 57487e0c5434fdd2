"""Tests TensorFlow graphs that are traced with unknown lengths."""

import functools

import keras
import numpy as np
import pytest
from comparisons import assert_all_close

if keras.backend.backend() != "tensorflow":
    pytest.skip("TensorFlow only", allow_module_level=True)

import tensorflow as tf

from t2t_relpos import RelativeMultiHeadAttention, backend
from t2t_relpos.attention import attend, dispatch, limits
from t2t_relpos.attention.call import lengths_up_to
from t2t_relpos.attention.dropout import AttentionDropout
from t2t_relpos.layers import Packing

EXCLUDED = ("scaled_dot_product_attention", "without_tables", "fused", "flash")
NAMES = [each.name for each in dispatch.TABLE if each.name not in EXCLUDED]


def graph_of(function, tables, jit_compile=False):
    """Returns a graph function of query, key and value of unknown lengths, and of the tables."""
    specs = [tf.TensorSpec((None, 3, None, width), tf.float64) for width in (5, 5, 7)]
    specs += [tf.TensorSpec(x.shape, tf.float64) for x in tables]
    return tf.function(function, input_signature=specs, jit_compile=jit_compile)


def outputs_and_gradients_with(**options):
    """Returns a function that returns the outputs of `attend` and all gradients."""

    def outputs_and_gradients(*xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            outputs, _ = attend(*xs, return_weights=False, **options)
        gradients = tape.gradient(outputs, xs)
        assert all(isinstance(x, tf.Tensor) for x in gradients), "gradients are dense"
        return outputs, gradients

    return outputs_and_gradients


def both_directions(implementation):
    """Returns a function of query, key, value, two shared tables and two tables per head.

    It returns outputs and gradients: bidirectional with shared tables, causal with the others.
    """
    bidirectional, causal = (
        outputs_and_gradients_with(implementation=implementation, causal=causal)
        for causal in (False, True)
    )
    return lambda *xs: [bidirectional(*xs[:5]), causal(*xs[:3], *xs[5:])]


@functools.cache
def arguments(length_q, length_k, batch=2):
    """Returns random arguments of the functions of `both_directions`."""
    rng = np.random.default_rng(20180401)
    shapes = [(batch, 3, length_q, 5), (batch, 3, length_k, 5), (batch, 3, length_k, 7)]
    shapes += [(5, 5), (5, 7), (3, 5, 5), (3, 5, 7)]
    return [tf.constant(rng.normal(size=shape)) for shape in shapes]


@functools.cache
def expected(*lengths):
    return both_directions("by_id")(*arguments(*lengths))


@pytest.mark.parametrize(
    "name, jit_compile", [*((name, False) for name in NAMES), ("blocks", True)]
)
def test_outputs_and_gradients_equal_known_lengths(
    name, jit_compile, small_block_implementations, assert_close
):
    compute = both_directions(small_block_implementations[name])
    run = graph_of(compute, arguments(1, 1)[3:], jit_compile)
    for lengths in [(1, 1), (17, 37)]:
        for found, results in zip(run(*arguments(*lengths)), expected(*lengths), strict=True):
            assert_close(found, results)
    for outputs, gradients in run(*arguments(23, 23, batch=0)):
        assert outputs.shape == (0, 3, 23, 7)
        shapes = [tuple(x.shape)[-2:] for x in gradients]
        assert shapes == [(23, 5), (23, 5), (23, 7), (5, 5), (5, 7)]
        assert not any(tf.reduce_any(x != 0) for x in gradients[3:])


@pytest.mark.parametrize(
    ("causal", "longest", "names"),
    [
        (False, 128, ["rows"]),
        (False, 256, ["full_matrix", "rows"]),
        (True, 40, ["rows"]),
        (True, 103, ["full_matrix"]),
        (True, 1000, ["full_matrix", "rows", "saved_blocks"]),
        (False, None, ["full_matrix", "rows", "saved_blocks", "rematerialized_blocks"]),
    ],
)
def test_graph_has_the_implementations_of_its_lengths(causal, longest, names, monkeypatch):
    chosen, select = [], dispatch.select

    def record(*arguments):
        chosen.append(select(*arguments))
        return chosen[-1]

    monkeypatch.setattr(dispatch, "select", record)
    layer = RelativeMultiHeadAttention(num_heads=3, key_dim=4, max_relative_position=5)
    x = np.random.default_rng(20180401).normal(size=(2, 7, 12)).astype("float32")
    expected = layer(x, x, use_causal_mask=causal)

    specs = [tf.TensorSpec((None, None, 12)), tf.TensorSpec((None, None), tf.bool)]

    @tf.function(input_signature=specs)
    def attend_packed(x, mask):
        packing = Packing(mask)
        packed = packing.pack(x)
        with lengths_up_to(longest):
            found = layer.attend_packed(
                packed, packed, packing, packing, training=True, use_causal_mask=causal
            )
        return packing.unpack(found)

    found = attend_packed(x, np.ones((2, 7), bool))
    assert [each.implementation.name for each in chosen[-1]] == names
    assert_all_close([found], [expected], rtol=1e-5, atol=1e-6)
    single = attend_packed(x[:, :1], np.ones((2, 1), bool))
    assert_all_close([single], [layer(x[:, :1], x[:, :1])], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["rematerialized_blocks", "saved_blocks"])
@pytest.mark.parametrize("lengths", [(0, 5), (5, 0)])
def test_blocks_without_queries_or_keys(name, lengths):
    compute = outputs_and_gradients_with(implementation=name)
    xs = arguments(*lengths)[:5]
    outputs, gradients = graph_of(compute, xs[3:])(*xs)
    assert outputs.shape == (2, 3, lengths[0], 7) and not outputs.numpy().any()
    assert [x.shape for x in gradients] == [x.shape for x in xs]
    assert not any(x.numpy().any() for x in gradients)


@pytest.mark.parametrize("rematerialize, causal", [(None, False), (False, True), (True, False)])
def test_the_graph_selects_an_implementation_by_the_lengths_of_the_call(
    causal, rematerialize, run_log, draw, assert_close
):
    tables = draw(1, 1, 2, value_dim=7)[3:]
    run = graph_of(outputs_and_gradients_with(rematerialize=rematerialize, causal=causal), tables)
    by_id = outputs_and_gradients_with(implementation="by_id", causal=causal)
    for length in (7, 101, 271):
        arrays = [tf.constant(x) for x in (*draw(length, length, 2, value_dim=7)[:3], *tables)]
        assert_close(run(*arrays), by_id(*arrays))
    if rematerialize:
        assert set(run_log) - {"by_id"} == {"rematerialized_blocks"}
    else:
        assert {"full_matrix", "rows", "rematerialized_blocks"} <= set(run_log)


def functions_of(graph, names, kind=""):
    """Returns the graphs of the functions with these names, and of all that they call.

    Only operations whose type has `kind` in its name count as calls.
    """
    found, waiting = {}, list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = graph._get_function(name).graph
            waiting += called_functions(found[name], kind)
    return found.values()


def called_functions(graph, kind):
    """Returns the names of the functions that the operations of a kind call."""
    names = []
    for op in graph.get_operations():
        if kind not in op.type:
            continue
        for key in op.node_def.attr:
            if op.node_def.attr[key].HasField("func"):
                names.append(op.node_def.attr[key].func.name)
    return names


@pytest.mark.parametrize("causal", [False, True])
def test_accelerators_choose_one_block_or_loops_by_a_single_condition(
    causal, run_log, draw, assert_close, monkeypatch
):
    monkeypatch.setattr(backend, "device", lambda: "gpu")
    monkeypatch.setattr(limits, "FULL_MATRIX", limits.Limits({}, limits.Limit(41, 41)))
    tables = draw(1, 1, 3, value_dim=7)[3:]
    compute = outputs_and_gradients_with(rematerialize=False, causal=causal)
    run = graph_of(compute, tables)
    graph = run.get_concrete_function().graph
    assert run_log == ["full_matrix", "blocks"]
    calls = [op for op in graph.get_operations() if "PartitionedCall" in op.type]
    bodies = functions_of(graph, [op.get_attr("f").name for op in calls], "PartitionedCall")
    outside = [op for body in (graph, *bodies) for op in body.get_operations()]
    conditions = [op for op in outside if op.type in ("If", "StatelessIf")]
    assert 1 <= len(conditions) <= 2  # of the outputs, and of the gradient
    assert not {"While", "StatelessWhile"} & {op.type for op in outside}
    kinds = {}
    for branch in ("then_branch", "else_branch"):
        names = [condition.get_attr(branch).name for condition in conditions]
        inner = [op.type for g in functions_of(graph, names) for op in g.get_operations()]
        kinds[branch] = set(inner)
    assert not {"While", "StatelessWhile", "If", "StatelessIf"} & kinds["then_branch"]
    assert {"While", "StatelessWhile"} & kinds["else_branch"]
    assert "XlaDynamicUpdateSlice" not in kinds["then_branch"] | kinds["else_branch"]
    by_id = outputs_and_gradients_with(implementation="by_id", causal=causal)
    for length in (1, 7, 41, 42, 67):
        arrays = [tf.constant(x) for x in (*draw(length, length, 3, value_dim=7)[:3], *tables)]
        assert_close(run(*arrays), by_id(*arrays))


def test_calls_of_a_graph_share_their_functions(draw, assert_close):
    """Also with other distances as a list, and with dropout functions that use other tensors."""
    tables = draw(1, 1, 2, value_dim=7)[3:]
    arrays = [tf.constant(x) for x in (*draw(9, 9, 2, value_dim=7)[:3], *tables)]

    def run(*xs, count):
        outputs = 0.0
        with tf.GradientTape() as tape:
            tape.watch(xs)
            for i in range(count):
                options = {"max_relative_position": [2, 2]} if i else {}
                outputs += attend(*xs, return_weights=False, **options)[0]
            scale = tf.reduce_sum(xs[3])
            outputs += attend(*xs, dropout=lambda weights: weights * scale)[0]
        return outputs, tape.gradient(outputs, xs)

    numbers = []
    for count in (1, 4):
        compute = functools.partial(run, count=count)
        graph = graph_of(compute, tables)
        numbers.append(len(graph.get_concrete_function().graph.as_graph_def().library.function))
        assert_close(graph(*arrays), compute(*arrays))
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize("return_weights, jit_compile", [(True, False), (False, True)])
def test_graphs_have_no_embedding_per_pair(return_weights, jit_compile, run_log, draw):
    """For H = 64 and 5,000 positions, a float32 tensor `[T, S, H]` takes 6.4 GB per table.

    Without returned weights and without XLA, a branch for short sequences gathers rows.
    """
    tables = draw(1, 1, 2, value_dim=7)[3:]

    def run(*xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            outputs = attend(*xs, return_weights=return_weights)
            loss = tf.add_n([tf.reduce_sum(x**2) for x in outputs if x is not None])
        return [loss, *tape.gradient(loss, xs)]

    function = graph_of(run, tables, jit_compile)
    concrete = function.get_concrete_function()
    assert run_log == ["by_id" if return_weights else "blocks"]
    gathers = [op for op in concrete.graph.get_operations() if "Gather" in op.type]
    assert not [op for op in gathers if op.outputs[0].shape.rank in (None, 3, 4)]
    arrays = [tf.constant(x) for x in (*draw(23, 29, 2, value_dim=7)[:3], *tables)]
    assert_all_close(function(*arrays), run(*arrays), rtol=0, atol=1e-10)


def test_seeds_are_drawn_outside_of_branches(draw):
    """A `keras.StatelessScope` around the call has the new state of the seed generator."""
    generator = keras.random.SeedGenerator(3)
    dropout = AttentionDropout(0.5, generator)
    tables = draw(1, 1, 3, value_dim=7)[3:]

    def outputs_and_state(*arrays):
        mapping = [(generator.state, generator.state.value)]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            outputs, _ = attend(*arrays, dropout=dropout, return_weights=False)
        return outputs, scope.get_current_value(generator.state)

    run = graph_of(outputs_and_state, tables)
    for length in (7, 151):
        arrays = [*draw(length, length, 3, value_dim=7)[:3], *tables]
        outputs, state = run(*arrays)
        np.testing.assert_array_equal(state - generator.state, [0, 1])
        assert np.abs(outputs - attend(*arrays)[0]).max() > 0.1


@pytest.mark.parametrize("jit_compile", [False, True])
def test_fit_applies_the_gradients_of_layers(jit_compile, rng):
    inputs = keras.Input((None, 6))
    layers = [
        RelativeMultiHeadAttention(2, 5, max_relative_position=3, flash_attention=flash_attention)
        for flash_attention in (None, True)
    ]
    model = keras.Model(inputs, [each(inputs, inputs, use_causal_mask=True) for each in layers])
    model.compile(keras.optimizers.SGD(1.0), ["mse", "mse"], jit_compile=jit_compile)
    x, y = rng.normal(size=(2, 3, 41, 6)).astype("float32")
    variables = model.trainable_variables
    before = [tf.identity(v.value) for v in variables]
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_mean((outputs - y) ** 2) for outputs in model(x)])
    expected = tape.gradient(loss, [v.value for v in variables])
    history = model.fit(x, [y, y], epochs=1, batch_size=3, verbose=0)
    np.testing.assert_allclose(history.history["loss"][0], loss, rtol=1e-5)
    for old, new, gradient in zip(before, variables, expected, strict=True):
        np.testing.assert_allclose(old - new, gradient, atol=1e-5, err_msg=new.path)
