"""Transforms the weights of a Transformer, so that fewer operations compute the same function.

The transformations are exact except for rounding:

- The scale of queries is part of their projection. Queries, keys and values of a self-attention
  come from one product, and so do the encoder's keys and values for all decoder layers.
- Embeddings are stored scaled by sqrt(D), and zero for padding.
- With pre-norm, everything that is added to the residual stream has mean 0. A layer normalization
  is then `x / sqrt(mean(x ** 2) + epsilon)`. Its gain and offset are part of the next product.
"""

import keras
from keras import ops

from t2t_relpos.backend.keras_private import sublayers
from t2t_relpos.layers.feed_forward import FeedForward
from t2t_relpos.layers.relative_multi_head_attention import RelativeMultiHeadAttention
from t2t_relpos.layers.residual import Residual
from t2t_relpos.layers.t2t_variants import RelativeMultiHeadAttentionV2
from t2t_relpos.layers.transformer_block import TransformerBlock

_ATTENTIONS = (RelativeMultiHeadAttention, RelativeMultiHeadAttentionV2)
# Keras's layers within the layers of this library.
_KERAS_LAYERS = (keras.layers.Dense, keras.layers.Dropout)


def can_fold(model):
    """Returns whether folded weights are used. `GenerationMixin.generate` describes the rule."""
    if not _is_plain(model):
        return False
    layers = sublayers(model)
    return all(map(_is_plain, layers)) and all(
        _has_known_sublayers(layer, model.config)
        for layer in layers
        if isinstance(layer, TransformerBlock)
    )


def is_own(cls):
    """Returns whether a class is of this library. A subclass elsewhere is not."""
    return cls.__module__.startswith("t2t_relpos.")


def _is_plain(layer):
    """Returns whether a layer is of a class of this library, in float32 and without LoRA.

    A subclass is of another class. The policies of quantized layers have other names.
    """
    is_known = type(layer) in _KERAS_LAYERS or is_own(type(layer))
    has_lora = getattr(layer, "lora_enabled", False)
    return is_known and layer.dtype_policy.name == "float32" and not has_lora


def _has_known_sublayers(block, config):
    """Returns whether the sublayers of a block have the settings of a model's config."""
    residuals = [block.self_attention_residual, block.feed_forward_residual]
    attentions = [block.self_attention]
    if block.cross_attention is not None:
        residuals.append(block.cross_attention_residual)
        attentions.append(block.cross_attention)
    return (
        all(type(residual) is Residual for residual in residuals)
        and all(type(attention) in _ATTENTIONS for attention in attentions)
        and type(block.feed_forward) is FeedForward
        and all(residual.normalize_first == config.normalize_first for residual in residuals)
        and all(_has_known_settings(attention, config) for attention in attentions)
        and block.feed_forward.inner.activation is keras.activations.relu
        and block.feed_forward.outer.activation is keras.activations.linear
    )


def _has_known_settings(attention, config):
    has_tables = attention.use_key_table or attention.use_value_table
    return (
        not attention.use_gate
        and attention.sliding_window is None
        and (not has_tables or attention.max_relative_position == config.max_relative_position)
    )


def fold_weights(model, dtype="float32", kernel_dtype="float32"):
    """Returns the folded weights of a `Transformer` or a `CausalLM`. The model does not change.

    Args:
        model: a built `t2t_relpos.models.Transformer` or `CausalLM`.
        dtype: dtype of the computation, "float32" or "float64".
        kernel_dtype: dtype of the kernels, and of the products with them: "float32" or "bfloat16".
            The kernel of the logits is always float32.

    Returns:
        A nested dict of tensors, float32 except for the kernels, and of the epsilons of the layer
        normalizations, which are floats. With V ids, P learned positions and L decoder layers:

        - `source`, `target` `[V, D]`; `source_positions`, `target_positions` `[P, D]` for learned
          positions; `space` `[D]` for a target space.
        - `encoder`, `decoder`: a list of layers. Each has the attention `self`, in the decoder the
          attention `cross`, and `feed_forward` with `inner`, `inner_bias`, `outer`, `outer_bias`.
          With post-norm it has `norms`, pairs of gain and offset. All three have the `epsilon` of
          their normalization.
        - `memory` `[D, L·N·(H + Hv)]`, `memory_bias`: projection of the encoder's outputs to the
          keys and values of all decoder layers, in the order key 0, value 0, key 1, value 1, …
        - `logits` `[D, V]`, `logits_bias` `[V]`.
        - `memory_epsilon`, `logits_epsilon` of the final normalizations, None with post-norm.

        An attention has `input`, `input_bias` and `output` `[N·Hv, D]`, and `output_bias`,
        `key_table` and `value_table` if the model has them, with rows for clipped distances.
        `input` is `[D, N·(2H + Hv)]` for query, key and value; in `cross` it is `[D, N·H]`, for the
        query. The weights of a `CausalLM` have no `cross`, and only those of `target`, `decoder`
        and `logits`.

    Raises:
        ValueError: if a projection is quantized.
    """
    return _Fold(model.config, dtype, kernel_dtype).weights(model)


class _Fold:
    """The transformations for one config."""

    def __init__(self, config, dtype, kernel_dtype):
        self.config = config
        self.dtype = dtype
        self.kernel_dtype = kernel_dtype

    def weights(self, model):
        if not hasattr(model, "encoder_layers"):  # a language model
            return {
                **self._embedding("target", model.embedding, model.position),
                "decoder": [self._layer(layer) for layer in model.blocks],
                **self._logits(model.output_embedding, model.norm),
            }
        memory = [
            self._matrix(projection)
            for layer in model.decoder_layers
            for projection in _key_and_value(layer.cross_attention)
        ]
        memory, memory_bias = self._after_norm(
            ops.concatenate(memory, axis=1), 0.0, model.encoder_norm
        )
        weights = {
            **self._embedding("source", model.source_embedding, model.source_position),
            **self._embedding("target", model.target_embedding, model.target_position),
            **self._logits(model.output_embedding, model.decoder_norm),
            "encoder": [self._layer(layer) for layer in model.encoder_layers],
            "decoder": [self._layer(layer) for layer in model.decoder_layers],
            "memory": self._to_kernel_dtype(memory),
            "memory_bias": _float32(memory_bias),
            "memory_epsilon": _epsilon(model.encoder_norm),
        }
        if self.config.target_space_id is not None:
            space = self._cast(model.target_space_embedding)[self.config.target_space_id]
            weights["space"] = _float32(self._centered(space))
        return weights

    def _logits(self, embedding, norm):
        kernel = ops.transpose(self._cast(embedding.embeddings))
        kernel, bias = self._after_norm(kernel, 0.0, norm)
        # Keep float32: rounded logits would change the order of likely ids.
        weights = {"logits": _float32(kernel), "logits_bias": _float32(bias)}
        return {**weights, "logits_epsilon": _epsilon(norm)}

    def _embedding(self, name, embedding, position):
        """Returns the vectors that embeddings of ids and positions add to the residual stream."""
        table = self._cast(embedding.embeddings)
        table = ops.concatenate([ops.zeros_like(table[:1]), table[1:]], axis=0)
        weights = {name: _float32(self._centered(table * embedding.hidden_dim**0.5))}
        if self.config.added_position == "learned":
            positions = self._centered(self._cast(position.embeddings))
            weights[f"{name}_positions"] = _float32(positions)
        return weights

    def _to_kernel_dtype(self, kernel):
        return ops.cast(kernel, self.kernel_dtype)

    def _cast(self, weight):
        return ops.cast(ops.convert_to_tensor(weight), self.dtype)

    def _matrix(self, projection):
        """Returns the kernel of a `HeadProjection` as a matrix."""
        matrix = projection.matrix
        matrix.check_floating()
        return ops.reshape(self._cast(projection.kernel), matrix.shape)

    def _bias(self, projection):
        return ops.reshape(self._cast(projection.bias), (-1,))

    def _centered(self, weight):
        """Returns a weight that adds to the residual stream, centered to mean 0 for pre-norm."""
        if not self.config.normalize_first:
            return weight
        return weight - ops.mean(weight, axis=-1, keepdims=True)

    def _after_norm(self, kernel, bias, norm):
        """Returns a kernel and bias that include gain and offset of the preceding pre-norm."""
        bias = bias + ops.zeros_like(kernel[0])
        if norm is None or not self.config.normalize_first:
            return kernel, bias
        gain, offset = self._cast(norm.gamma)[:, None], self._cast(norm.beta)[:, None]
        return gain * kernel, bias + ops.sum(offset * kernel, axis=0)

    def _layer(self, layer):
        norms = {"self": layer.self_attention_residual.norm}
        weights = {"self": self._attention(layer.self_attention, norms["self"], is_self=True)}
        if layer.cross_attention is not None:
            norms["cross"] = layer.cross_attention_residual.norm
            weights["cross"] = self._attention(layer.cross_attention, norms["cross"], is_self=False)
        norms["feed_forward"] = layer.feed_forward_residual.norm
        weights["feed_forward"] = self._feed_forward(layer.feed_forward, norms["feed_forward"])
        if not self.config.normalize_first:
            weights["norms"] = {
                name: [_float32(self._cast(part)) for part in (norm.gamma, norm.beta)]
                for name, norm in norms.items()
            }
        return weights

    def _attention(self, attention, norm, *, is_self):
        projections = [attention.query_dense, *(_key_and_value(attention) if is_self else ())]
        # Queries are scaled.
        scales = [attention.key_dim**-0.5, 1, 1]
        parts = [self._matrix(x) * scale for x, scale in zip(projections, scales)]
        bias = 0.0
        if attention.use_bias:
            biases = [self._bias(x) * scale for x, scale in zip(projections, scales)]
            bias = ops.concatenate(biases, axis=0)
        kernel, bias = self._after_norm(ops.concatenate(parts, axis=1), bias, norm)
        weights = {
            "input": self._to_kernel_dtype(kernel),
            "input_bias": _float32(bias),
            "epsilon": _epsilon(norm),
            "output": self._to_kernel_dtype(self._centered(self._matrix(attention.output_dense))),
        }
        if attention.use_bias:
            output_bias = self._centered(self._bias(attention.output_dense))
            weights["output_bias"] = _float32(output_bias)
        for name, table in zip(("key_table", "value_table"), attention.clipped_tables()):
            if table is not None:
                weights[name] = _float32(self._cast(table))
        return weights

    def _feed_forward(self, feed_forward, norm):
        inner, outer = feed_forward.inner, feed_forward.outer
        kernel, bias = self._after_norm(self._cast(inner.kernel), self._cast(inner.bias), norm)
        return {
            "inner": self._to_kernel_dtype(kernel),
            "inner_bias": _float32(bias),
            "epsilon": _epsilon(norm),
            "outer": self._to_kernel_dtype(self._centered(self._cast(outer.kernel))),
            "outer_bias": _float32(self._centered(self._cast(outer.bias))),
        }


def _key_and_value(attention):
    return attention.key_dense, attention.value_dense


def _epsilon(norm):
    return None if norm is None else float(norm.epsilon)


def _float32(weight):
    return ops.cast(weight, "float32")
