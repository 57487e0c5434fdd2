"""Token embeddings, and absolute position encodings that are added to them."""

import math

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos.backend import arange, is_portable
from t2t_relpos.layers.layer_mixin import LayerMixin, config_of


@keras.saving.register_keras_serializable(package="t2t_relpos")
class TokenEmbedding(LayerMixin, keras.layers.Layer):
    """Token embedding scaled by `D ** 0.5`, with zeros for padding, and the tied projection.

    Args:
        vocab_size: V, number of ids, including padding (0).
        hidden_dim: D, size of a vector.
        embeddings_initializer: initializer of the `[V, D]` table. Default: None, a normal
            distribution of standard deviation `D ** -0.5`, as in t2t.
        **kwargs: `name`, `dtype`, `trainable` of `keras.layers.Layer`.

    Call arguments:
        inputs: int ids `[B, T]` in `[0, V)`, or vectors `[B, T, D]` if `reverse`.
        reverse: False: looks up ids. True: multiplies vectors by the transposed table. Default:
            False.

    Returns:
        `[B, T, D]`, or logits `[B, T, V]`, not scaled, if `reverse`.

    Raises:
        ValueError: if ids are not integers, or are out of range in an eager call. Compiled code on
            JAX returns NaN for an id of V or larger. On TensorFlow on a CPU, such an id raises
            InvalidArgumentError, or has the vector of the last id with XLA.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.layers import TokenEmbedding
    >>> embedding = TokenEmbedding(vocab_size=7, hidden_dim=4)
    >>> vectors = embedding(np.array([[3, 0]]))
    >>> bool(ops.all(vectors[0, 1] == 0))
    True
    >>> tuple(embedding(vectors, reverse=True).shape)
    (1, 2, 7)

    Reference: t2t `SymbolModality` (`bottom`, `top` with `shared_embedding_and_softmax_weights`).
    """

    def __init__(self, vocab_size, hidden_dim, embeddings_initializer=None, **kwargs):
        super().__init__(**kwargs)
        self.vocab_size = _checks.positive_int(vocab_size, "vocab_size")
        self.hidden_dim = _checks.positive_int(hidden_dim, "hidden_dim")
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, input_shape=None):
        self.embeddings = _add_embeddings(self, self.vocab_size, self.hidden_dim)

    def call(self, inputs, reverse=False):
        table = ops.convert_to_tensor(self.embeddings)
        if reverse:
            return ops.matmul(inputs, ops.transpose(table))
        _checks.token_ids(inputs, self.vocab_size)
        if keras.backend.standardize_dtype(inputs.dtype) not in ("int32", "int64"):
            # TensorFlow can't gather with every integer dtype.
            inputs = ops.cast(inputs, "int32")
        vectors = ops.take(table, inputs, axis=0) * self.hidden_dim**0.5
        real = ops.expand_dims(ops.not_equal(inputs, 0), -1)
        return vectors * ops.cast(real, vectors.dtype)

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.hidden_dim)

    def compute_output_spec(self, inputs, reverse=False):
        if reverse:
            shape = (*inputs.shape[:-1], self.vocab_size)
        else:
            _checks.integers(inputs, "token ids")
            shape = self.compute_output_shape(inputs.shape)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self):
        names = "vocab_size hidden_dim embeddings_initializer"
        return {**super().get_config(), **config_of(self, names)}


def _add_embeddings(layer, rows, width):
    initializer = layer.embeddings_initializer
    if initializer is None:
        initializer = keras.initializers.RandomNormal(stddev=width**-0.5)
    return layer.add_weight(name="embeddings", shape=(rows, width), initializer=initializer)


def sinusoids(positions, width):
    """Returns sines, then cosines, of `positions` at geometrically spaced frequencies.

    This is t2t's order of the columns. The paper's formula interleaves them.

    Reference: Vaswani et al. 2017, section 3.5; t2t `get_timing_signal_1d`.
    """
    count = width // 2
    step = math.log(10_000.0) / max(count - 1, 1)
    rates = ops.exp(ops.cast(arange(count), "float32") * -step)
    angles = ops.expand_dims(ops.cast(positions, "float32"), -1) * rates
    signal = ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)
    if width % 2:
        signal = ops.concatenate([signal, ops.zeros_like(angles[..., :1])], axis=-1)
    return signal


class _PositionEncoding(LayerMixin, keras.layers.Layer):
    """Base class of layers that add vectors of positions to their inputs."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_output_shape(self, input_shape):
        _check_rank(input_shape)
        return tuple(input_shape)

    def compute_output_spec(self, inputs, start=0, positions=None):
        # Not the result of a traced call: on PyTorch, its length would be arbitrary.
        _check_arguments(inputs, start, positions)
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)


@keras.saving.register_keras_serializable(package="t2t_relpos")
class SinusoidalPositionEncoding(_PositionEncoding):
    """Adds fixed sines and cosines of the position.

    Args:
        **kwargs: `name`, `dtype` of `keras.layers.Layer`.

    Call arguments:
        inputs: `[B, ..., T, D]`. Positions count along the axis before the last.
        start: position of the first input: an int, a scalar tensor, or int `[B]`. Default: 0.
        positions: int `[T]` or `[B, T]`, a position for every input. It replaces `start`. Default:
            `start + (0, 1, …)`.

    Returns:
        `[B, ..., T, D]`, the inputs plus the encoding.

    Raises:
        ValueError: if the inputs have no sequence axis, both `start` and `positions` are given, or
            one of them has the wrong shape or dtype.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.layers import SinusoidalPositionEncoding
    >>> x = SinusoidalPositionEncoding()(np.zeros((1, 2, 4)))
    >>> ops.convert_to_numpy(x[0, 0]).tolist()
    [0.0, 0.0, 1.0, 1.0]

    Reference: t2t `add_timing_signal_1d`.
    """

    def call(self, inputs, start=0, positions=None):
        positions = _positions(inputs, start, positions)
        return inputs + ops.cast(sinusoids(positions, inputs.shape[-1]), inputs.dtype)


@keras.saving.register_keras_serializable(package="t2t_relpos")
class LearnedPositionEmbedding(_PositionEncoding):
    """Adds a learned vector for every position.

    Args:
        max_length: number of positions with a vector.
        embeddings_initializer: initializer of the table. Default: None, a normal distribution of
            standard deviation `D ** -0.5`, as for `TokenEmbedding`.
        **kwargs: `name`, `dtype`, `trainable` of `keras.layers.Layer`.

    Call arguments:
        inputs: `[B, ..., T, D]`. Positions count along the axis before the last.
        start: position of the first input: an int, a scalar tensor, or int `[B]`. Default: 0.
        positions: int `[T]` or `[B, T]`, a position for every input. It replaces `start`. Default:
            `start + (0, 1, …)`.

    Returns:
        `[B, ..., T, D]`, the inputs plus the vectors. If positions are unknown, as in compiled
        code, those of `max_length` or more use the last vector, and negative ones the first.

    Raises:
        ValueError: if a position is known to be outside of `[0, max_length)`, the inputs have no
            sequence axis, both `start` and `positions` are given, or one of them has the wrong
            shape or dtype.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.layers import LearnedPositionEmbedding
    >>> layer = LearnedPositionEmbedding(max_length=5)
    >>> tuple(layer(np.zeros((2, 3, 4))).shape)
    (2, 3, 4)

    Reference: t2t `add_positional_embedding`.
    """

    def __init__(self, max_length, embeddings_initializer=None, **kwargs):
        super().__init__(**kwargs)
        self.max_length = _checks.positive_int(max_length, "max_length")
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, input_shape):
        self.embeddings = _add_embeddings(self, self.max_length, input_shape[-1])

    def call(self, inputs, start=0, positions=None):
        self._check_range(inputs.shape, start, positions)
        positions = ops.clip(_positions(inputs, start, positions), 0, self.max_length - 1)
        table = ops.convert_to_tensor(self.embeddings)
        if is_portable():
            return inputs + ops.take(table, positions, axis=0)
        # The gradient of `take` along axis 1 of [1, P, D] is dense.
        return inputs + ops.take(table[None], positions, axis=1)[0]

    def compute_output_shape(self, input_shape):
        self._check_range(input_shape, 0, None)
        return super().compute_output_shape(input_shape)

    def compute_output_spec(self, inputs, start=0, positions=None):
        self._check_range(inputs.shape, start, positions)
        return super().compute_output_spec(inputs, start, positions)

    def _check_range(self, shape, start, positions):
        """Raises ValueError if positions are known to be outside of the table."""
        advice = "Raise `max_length`, or use relative positions, which have no limit."
        if positions is not None:
            _checks.integers(_checks.as_array(positions), "`positions`")
            _checks.in_range(positions, "positions", 0, self.max_length, advice)
            return
        length = shape[-2] if len(shape) > 1 else None
        if not isinstance(start, int) or not isinstance(length, int):
            return
        if start < 0:
            raise ValueError(f"Expected `start` to be at least 0. Received: start={start}.")
        if start + length > self.max_length:
            raise ValueError(
                f"Expected at most max_length={self.max_length} positions. Received: "
                f"{start + length}. {advice}"
            )

    def get_config(self):
        return {**super().get_config(), **config_of(self, "max_length embeddings_initializer")}


def _positions(inputs, start, positions):
    """Returns int32 positions `[T]`, or `[B, 1, ..., T]` if batch entries differ."""
    _check_arguments(inputs, start, positions)
    if positions is None:
        positions = arange(ops.shape(inputs)[-2])
        start = ops.cast(start, "int32")
        positions = (ops.expand_dims(start, -1) if len(start.shape) else start) + positions
    positions = ops.cast(positions, "int32")
    inner_axes = tuple(range(1, len(inputs.shape) - 2))
    if len(positions.shape) == 1 or not inner_axes:
        return positions
    return ops.expand_dims(positions, inner_axes)


def _check_arguments(inputs, start, positions):
    """Raises ValueError if arguments contradict each other, or have wrong shapes or dtypes."""
    shape = inputs.shape
    _check_rank(shape)
    _checks.floats(inputs, "inputs", _checks.EMBED_IDS)
    sizes = {"B": shape[0] if len(shape) > 2 else None, "T": shape[-2]}
    per_entry = False
    if positions is not None:
        if not isinstance(start, int) or start != 0:
            raise ValueError("Expected either `start` or `positions`. Received: both.")
        _checks.positions(positions, "positions", "T | B T", sizes)
        per_entry = len(_checks.as_array(positions).shape) == 2
    elif type(start) is not int:
        start = _checks.as_array(start)
        advice = "Pass `positions` for a position of every input."
        _checks.check(start, "start", " | B", "int", sizes, advice=advice)
        per_entry = len(start.shape) == 1
    if per_entry and len(shape) == 2:
        raise ValueError(
            "Expected inputs [batch, ..., length, width] with positions per batch entry. Received: "
            f"inputs of shape {tuple(shape)}."
        )


def _check_rank(shape):
    """Raises ValueError if inputs have no sequence axis."""
    if len(shape) < 2:
        raise ValueError(
            "Expected `inputs` of shape [batch, ..., length, width]. Received: shape "
            f"{tuple(shape)}."
        )
