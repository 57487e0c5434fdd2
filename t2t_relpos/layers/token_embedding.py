"""Token embedding, and the tied projection to logits."""

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos.layers.layer_mixin import LayerMixin


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
        self.vocab_size = _checks.positive_int("vocab_size", vocab_size)
        self.hidden_dim = _checks.positive_int("hidden_dim", hidden_dim)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, input_shape=None):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.vocab_size, self.hidden_dim),
            initializer=self.embeddings_initializer
            or keras.initializers.RandomNormal(stddev=self.hidden_dim**-0.5),
        )

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
            _checks.integers("token ids", inputs)
            shape = self.compute_output_shape(inputs.shape)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self):
        initializer = self.embeddings_initializer
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "hidden_dim": self.hidden_dim,
            "embeddings_initializer": initializer and keras.initializers.serialize(initializer),
        }
