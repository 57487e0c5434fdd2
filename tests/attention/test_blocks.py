"""Attention block by block on TensorFlow: equal to all pairs at once, outputs and gradients."""

import sys

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_relpos import RelativeMultiHeadAttention
from t2t_relpos.attention import attend, causal_mask
from t2t_relpos.attention.dropout import AttentionDropout
from t2t_relpos.attention.reference import dot_product_attention_relative

if keras.backend.backend() != "tensorflow":
    pytest.skip("TensorFlow's own way to compute", allow_module_level=True)

import tensorflow as tf

from t2t_relpos.attention import _tensorflow as blocks
from t2t_relpos.attention._tensorflow_diagonals import extent
from t2t_relpos.attention._tensorflow_layout import Layout, needs_margins

MODULE = sys.modules["t2t_relpos.attention.attend"]  # the package's attribute is the function

BLOCK_SIZES = [name for name in dir(blocks) if name.startswith("LARGEST")]


@pytest.fixture(params=["kept", pytest.param("computed again", marks=pytest.mark.slow)])
def small_blocks(request, monkeypatch):
    """Blocks however short the sequences are, and small ones, so that there are several; with weights for the gradient or without."""
    monkeypatch.setattr(MODULE, "LONGEST_WHOLE", 0)
    monkeypatch.setattr(blocks, "LONGEST_KEPT", 2048 if request.param == "kept" else 0)
    for name in BLOCK_SIZES:
        monkeypatch.setattr(blocks, name, 5)


def outputs_and_gradients(arrays, weigh=1.0, **kwargs):
    arrays = list(arrays)
    with tf.GradientTape() as tape:
        tape.watch([x for x in arrays if x is not None])
        outputs, _ = attend(*arrays, **kwargs)
        loss = tf.reduce_sum(outputs * tf.cast(weigh, outputs.dtype))
    gradients = iter(tape.gradient(loss, [x for x in arrays if x is not None]))
    return [outputs, *(x if x is None else next(gradients) for x in arrays)]


def assert_equal_at_once(arrays, rng, atol=1e-11, **kwargs):
    weigh = rng.normal(size=(*arrays[0].shape[:3], arrays[2].shape[-1]))
    ours = outputs_and_gradients(arrays, weigh, return_weights=False, recompute=False, **kwargs)
    theirs = outputs_and_gradients(arrays, weigh, **kwargs)
    for actual, expected in zip(ours, theirs, strict=True):
        assert (actual is None) == (expected is None)
        if actual is not None:
            assert isinstance(actual, tf.Tensor), "a sparse gradient"
            np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


def test_the_way_is_chosen_by_length(monkeypatch, rng, draw):
    called = []
    monkeypatch.setattr(
        blocks, "Layout", lambda *args: called.append(int(args[0])) or Layout(*args)
    )
    monkeypatch.setattr(MODULE, "LONGEST_WHOLE", 16)
    monkeypatch.setattr(MODULE, "LONGEST_WHOLE_CAUSAL", 13)
    for length in (13, 14, 16, 17):
        attend(*draw(rng, length, length, 2), return_weights=False)
        attend(*draw(rng, length, length, 2), return_weights=False, causal=True)
        attend(*draw(rng, length, length, 2))
    assert called == [14, 16, 17, 17]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "lengths", [(1, 1, 2), (3, 3, 5), (7, 7, 0), (23, 23, 3), (5, 11, 3), (13, 5, 2), (1, 13, 3)]
)
def test_equals_the_port_of_t2t(lengths, causal, small_blocks, rng, draw):
    length_q, length_k, k = lengths
    arrays = draw(rng, *lengths)
    assert_equal_at_once(arrays, rng, causal=causal)
    arrays[2], arrays[4] = (
        arrays[2][..., :5],
        arrays[4][..., :5],
    )  # the port wants values as deep as keys
    if k == 0 or length_q > length_k:
        return  # the port refuses both
    bias = np.where(causal_mask(length_q, length_k), 0.0, -1e9) if causal else None
    *qkv, key_table, value_table = arrays
    expected = dot_product_attention_relative(
        *qkv, bias, key_table, value_table, k, allow_memory=True
    )
    outputs, _ = attend(*arrays, causal=causal, return_weights=False)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def always_blocks():
    """As `small_blocks`, but once for all examples; these say how large a block is."""
    before = (
        {name: getattr(blocks, name) for name in dir(blocks) if name.isupper()},
        MODULE.LONGEST_WHOLE,
    )
    MODULE.LONGEST_WHOLE = 0
    yield
    for name, value in before[0].items():
        setattr(blocks, name, value)
    MODULE.LONGEST_WHOLE = before[1]


@settings(deadline=None, max_examples=20, derandomize=True)
@given(data=st.data())
def test_equals_all_pairs_at_once(always_blocks, data, draw):
    rng = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
    length_q, length_k = (data.draw(st.integers(1, 23), name) for name in ("T", "S"))
    k = data.draw(st.sampled_from([0, 1, 2, 3, 7, 31]), "K")
    block = data.draw(st.integers(3, 13), "block")
    for name in BLOCK_SIZES:
        setattr(blocks, name, block)
    blocks.STRETCH = blocks.STRETCH_KEPT = data.draw(st.sampled_from([2, 3, 32]), "stretch")
    blocks.LONGEST_KEPT = data.draw(st.sampled_from([0, 2048]), "longest whose weights are kept")
    blocks.KEYS_AT_ONCE = blocks.KEYS_AT_ONCE_KEPT = data.draw(
        st.sampled_from([0, 2048]), "keys at once"
    )
    arrays = draw(
        rng, length_q, length_k, k, data.draw(st.sampled_from([None, 3]), "tables of every head")
    )
    off = data.draw(st.sampled_from([None, 3, 4]), "table that is off")
    arrays = [None if i == off else x for i, x in enumerate(arrays)]
    kwargs = {"causal": data.draw(st.booleans(), "causal")}
    if data.draw(st.booleans(), "given offset"):
        kwargs["query_offset"] = data.draw(st.integers(-35, 35), "offset")
    if data.draw(st.booleans(), "key mask"):
        kwargs["key_mask"] = rng.random((2, length_k)) > 0.4
    if data.draw(st.booleans(), "query mask"):
        kwargs["query_mask"] = rng.random((2, length_q)) > 0.4
    shape = data.draw(
        st.sampled_from(
            [
                None,
                (length_q, length_k),
                (2, 1, length_q, length_k),
                (2, 3, 1, length_k),
                (1, 3, length_q, 1),
                (1, 1, 1, length_k),
                (2, 1, 1, length_k),
            ]
        ),
        "mask",
    )
    if shape:
        kwargs["mask"] = rng.random(shape) > 0.3
    assert_equal_at_once(arrays, rng, **kwargs)


def entries(low, high, length_q, length_k):
    """Of a band of a matrix: which exist, as TensorFlow packs them, `[diagonals, longest of them]`."""
    ones = tf.ones([length_q, length_k])
    return tf.linalg.diag_part(ones, k=(low, high), align="LEFT_RIGHT").shape


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    lengths=st.tuples(st.integers(1, 23), st.integers(1, 23)),
    offset=st.integers(-35, 35),
    reach=st.integers(2, 9),
    causal=st.booleans(),
    block=st.integers(1, 13),
    stretch=st.integers(2, 9),
)
def test_margins_give_every_block_all_of_its_diagonals(
    lengths, offset, reach, causal, block, stretch
):
    settings = *lengths, offset, reach, causal, block, stretch
    layout = Layout(*settings, margins=needs_margins(*settings))
    below, above = extent(reach, causal, stretch)
    for number in range(int(layout.num_blocks)):
        first, end = int(layout.first(number)), int(layout.end(number))
        assert entries(first - below + 1, first + above - 1, int(layout.block), end) == (
            below + above - 1,
            layout.block,
        )
        # What is far on the left of a query is a number of keys that there are.
        assert causal or first + int(layout.block) - 1 - reach <= end
        # Keys that the last query of a block may see are not left out.
        assert not causal or end == layout.width or end == first + layout.block


@pytest.mark.parametrize(
    "length, causal",
    [
        (257, False),
        (512, False),
        (1000, False),
        (4096, False),
        (129, True),
        (256, True),
        (1000, True),
    ],
)
def test_usual_lengths_need_no_margins(length, causal):
    for block, stretch in [(128, 32), (256, 64)] if causal else [(256, 32), (512, 64)]:
        settings = 16, causal, block, stretch
        assert not needs_margins(length, length, 0, *settings)
        assert needs_margins(length, length, -200, *settings)
        assert needs_margins(None, length, 0, *settings)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_known_lengths_in_a_graph(k, causal, small_blocks, monkeypatch, rng, draw):
    """Without margins."""
    monkeypatch.setattr(blocks, "STRETCH", 2)
    monkeypatch.setattr(blocks, "STRETCH_KEPT", 2)
    arrays = draw(rng, 23, 23, k)
    function = tf.function(
        lambda *xs: outputs_and_gradients(xs, causal=causal, return_weights=False, recompute=False),
        autograph=False,
    )
    for actual, expected in zip(
        function(*arrays), outputs_and_gradients(arrays, causal=causal), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("together", [1, 2, 4])
def test_heads_in_groups(together, monkeypatch, rng):
    """Groups of one row of the batch, with tables and masks of each head."""
    monkeypatch.setattr(MODULE, "LONGEST_WHOLE", 0)
    monkeypatch.setattr(blocks, "_sizes", lambda causal, keep: (5, 13 * together + 12, 32))
    taken = []
    original = blocks.Blocks.attend
    monkeypatch.setattr(
        blocks.Blocks,
        "attend",
        lambda self, *rows: taken.append(rows[0].shape) or original(self, *rows),
    )
    shapes = (2, 4, 11, 5), (2, 4, 13, 5), (2, 4, 13, 7), (4, 7, 5), (4, 7, 7)
    arrays = [tf.constant(rng.normal(size=shape)) for shape in shapes]
    assert_equal_at_once(
        arrays, rng, mask=rng.random((2, 4, 11, 13)) > 0.3, key_mask=rng.random((2, 13)) > 0.2
    )
    assert_equal_at_once(arrays, rng, mask=rng.random((1, 4, 1, 13)) > 0.3, causal=True)
    assert set(taken) == {tf.TensorShape([8 // together, together, 11, 5])}


@pytest.mark.parametrize(
    "num_heads, most, expected", [(8, 3, 2), (8, 9, 8), (6, 5, 3), (7, 6, 1), (5, 0, 1)]
)
def test_a_group_divides_the_heads(num_heads, most, expected):
    assert int(blocks._heads_at_once(num_heads, tf.constant(most))) == expected


def test_unknown_lengths_in_a_graph(small_blocks, monkeypatch, rng, draw):
    monkeypatch.setattr(MODULE, "LONGEST_WHOLE", 9)
    spec = [tf.TensorSpec((None, 3, None, width), tf.float64) for width in (5, 5, 7)]
    spec += [tf.TensorSpec((7, width), tf.float64) for width in (5, 7)]
    function = tf.function(
        lambda *xs: outputs_and_gradients(xs, causal=True, return_weights=False, recompute=False),
        input_signature=spec,
    )
    for lengths in ((1, 1, 3), (7, 7, 3), (9, 10, 3), (31, 31, 3)):
        arrays = draw(rng, *lengths)
        for actual, expected in zip(
            function(*arrays), outputs_and_gradients(arrays, causal=True), strict=True
        ):
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True])
def test_weights_are_kept_up_to_a_length_and_never_on_request(known, monkeypatch, rng, draw):
    kept = []
    monkeypatch.setattr(MODULE, "LONGEST_WHOLE", 9)
    monkeypatch.setattr(blocks, "LONGEST_KEPT", 13)
    original = blocks.Blocks._weights
    monkeypatch.setattr(
        blocks.Blocks,
        "_weights",
        lambda self, *args: kept.append(self.keep) or original(self, *args),
    )

    def of(length, recompute):
        """Whether weights were kept, of the traces of a graph, or of what was computed."""
        arrays = draw(rng, length, length, 2)
        kept.clear()
        step = lambda *xs: outputs_and_gradients(xs, return_weights=False, recompute=recompute)  # noqa: E731
        if not known:
            specs = [
                tf.TensorSpec((2, 3, None, x.shape[-1]) if len(x.shape) == 4 else x.shape, x.dtype)
                for x in arrays
            ]
            step = tf.function(step, input_signature=specs, autograph=False)
        for actual, expected in zip(step(*arrays), outputs_and_gradients(arrays), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-11)
        return set(kept)

    if known:
        assert [of(length, False) for length in (9, 13, 14)] == [set(), {True}, {False}]
        assert [of(length, None) for length in (9, 13)] == [set(), {False}]
        assert [of(length, True) for length in (9, 13)] == [{False}, {False}]
    else:
        # What is traced once is not traced again.
        assert [of(length, False) for length in (13, 9, 14)] == [{True, False}, set(), set()]
        assert of(13, None) == of(13, True) == set()


def test_recomputation_that_is_not_possible_is_an_error(rng, draw):
    arrays = draw(rng, 5, 5, 2)
    message = "Expected `recompute` .* to be None or False where attention can't be taken block by block.* Received: True"
    for kwargs in ({}, {"return_weights": False, "labels": np.zeros((5, 5), "int32")}):
        with pytest.raises(ValueError, match=message):
            attend(*arrays, recompute=True, **kwargs)


@pytest.mark.parametrize("length", [None, 13])
def test_a_batch_of_nothing_has_gradients_of_zero(length, small_blocks, rng, draw):
    *arrays, key_table, value_table = draw(rng, 13, 13, 2)
    spec = [tf.TensorSpec((None, 3, length, width), tf.float64) for width in (5, 5, 7)]
    function = tf.function(
        lambda *xs: outputs_and_gradients([*xs, key_table, value_table], return_weights=False), spec
    )
    outputs, *gradients = function(*(x[:0] for x in arrays))
    assert outputs.shape == (0, 3, 13, 7)
    assert [g.shape for g in gradients] == [
        (0, 3, 13, 5),
        (0, 3, 13, 5),
        (0, 3, 13, 7),
        (5, 5),
        (5, 7),
    ]
    assert not any(tf.reduce_any(g != 0) for g in gradients)


# Largest error over the largest entry, against float64 from the same rounded inputs.
@pytest.mark.parametrize(
    "dtype, tolerance", [("float32", 2e-6), ("float16", 1e-2), ("bfloat16", 6e-2)]
)
def test_lower_precision_is_near_float64(dtype, tolerance, small_blocks, rng, draw):
    low = [tf.cast(x, dtype) for x in draw(rng, 37, 37, 3)]
    actual = outputs_and_gradients(low, return_weights=False, recompute=False)
    expected = outputs_and_gradients([tf.cast(x, tf.float64) for x in low])
    for ours, exact in zip(actual, expected, strict=True):
        assert ours.dtype == dtype
        assert np.abs(tf.cast(ours, tf.float64) - exact).max() < tolerance * np.abs(exact).max()


class FixedSeed:
    def next(self):
        return tf.constant([7, 11], tf.uint32)


def test_dropout_keeps_weights_at_its_rate_and_scales_them(small_blocks, rng, draw):
    query, key, _, key_table, _ = draw(rng, 61, 67, 3)
    value = tf.eye(67, batch_shape=(2, 3), dtype=tf.float64)  # outputs are the weights
    dropped, _ = attend(
        query,
        key,
        value,
        key_table,
        dropout=AttentionDropout(0.3, FixedSeed()),
        return_weights=False,
    )
    _, weights = attend(query, key, value, key_table)
    kept = dropped.numpy() != 0
    np.testing.assert_allclose(dropped.numpy()[kept], weights.numpy()[kept] / 0.7, rtol=1e-4)
    assert abs(kept.mean() - 0.7) < 0.01
    assert (kept[:, :, 5:] != kept[:, :, :-5]).mean() > 0.3 and (kept[0] != kept[1]).mean() > 0.3


@pytest.mark.parametrize("causal", [False, True])
def test_the_gradient_repeats_the_dropout_of_the_outputs(causal, small_blocks, rng, draw):
    arrays, directions = draw(rng, 13, 17, 2), draw(rng, 13, 17, 2)
    kwargs = {
        "dropout": AttentionDropout(0.4, FixedSeed()),
        "causal": causal,
        "return_weights": False,
        "recompute": False,
    }
    weigh = rng.normal(size=(2, 3, 13, 7))
    _, *gradients = outputs_and_gradients(arrays, weigh, **kwargs)
    slope = sum(np.sum(g * d) for g, d in zip(gradients, directions))
    ends = [
        np.sum(weigh * attend(*(x + step * d for x, d in zip(arrays, directions)), **kwargs)[0])
        for step in (-1e-6, 1e-6)
    ]
    np.testing.assert_allclose((ends[1] - ends[0]) / 2e-6, slope, rtol=1e-6)


def test_seeds_of_calls_differ(small_blocks, rng, draw):
    arrays = draw(rng, 13, 13, 2)
    dropout = AttentionDropout(0.5, keras.random.SeedGenerator(3))
    one, other = (attend(*arrays, dropout=dropout, return_weights=False)[0] for _ in range(2))
    assert np.abs(one - other).max() > 0.1


def test_seeds_are_drawn_where_others_can_see_it(monkeypatch, rng, draw):
    """In a graph that chooses by length, for programs that carry the generators' states themselves."""
    monkeypatch.setattr(MODULE, "LONGEST_WHOLE", 9)
    generator = keras.random.SeedGenerator(3)
    dropout = AttentionDropout(0.5, generator)
    *arrays, key_table, value_table = draw(rng, 13, 13, 3)

    @tf.function(
        input_signature=[tf.TensorSpec((2, 3, None, width), tf.float64) for width in (5, 5, 7)]
    )
    def outputs_and_state(*arrays):
        with keras.StatelessScope(
            state_mapping=[(generator.state, generator.state.value)]
        ) as scope:
            outputs, _ = attend(
                *arrays, key_table, value_table, dropout=dropout, return_weights=False
            )
        return outputs, scope.get_current_value(generator.state)

    for length in (7, 13):
        outputs, state = outputs_and_state(*(x[:, :, :length] for x in arrays))
        np.testing.assert_array_equal(state - generator.state, [0, 1])
        exact, _ = attend(*(x[:, :, :length] for x in arrays), key_table, value_table)
        assert np.abs(outputs - exact).max() > 0.1


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_layer_trains_in_fit(jit_compile, rng, monkeypatch):
    """Lengths that the model doesn't know; with XLA, on request, in another way."""
    monkeypatch.setattr(MODULE, "LONGEST_WHOLE", 16)
    inputs = keras.Input((None, 6))
    layer = RelativeMultiHeadAttention(2, 5, max_relative_position=3)
    model = keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True))
    model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=jit_compile)
    x, y = rng.normal(size=(2, 3, 41, 6)).astype("float32")
    weights = [tf.Variable(v) for v in model.trainable_variables]
    with tf.GradientTape() as tape:
        for variable, weight in zip(model.trainable_variables, weights):
            variable.assign(weight)
        outputs, _ = layer(x, x, use_causal_mask=True, return_attention_scores=True)
        loss = tf.reduce_mean((outputs - y) ** 2)
    expected = tape.gradient(loss, [v.value for v in model.trainable_variables])
    history = model.fit(x, y, epochs=1, batch_size=3, verbose=0)
    np.testing.assert_allclose(history.history["loss"][0], loss, rtol=1e-5)
    for before, after, gradient in zip(weights, model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(before - after, gradient, atol=1e-5)
