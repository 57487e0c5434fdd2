"""A Transformer's weights, transformed so that fewer operations and larger products compute the
same.

Exact algebra, done in float64; the model itself is not touched:

* queries are scaled in their projection; queries, keys and values are one product, and so are all
decoder layers' keys and
  values of the source;
* embeddings are scaled by sqrt(D) and zero for padding in the table;
* pre-norm: everything that is added to the residual stream is centred, so that its mean is always 0
and a normalization is
  `x / sqrt(mean(x ** 2) + epsilon)`; gains and offsets move into the products that read what was
  normalized.
"""

import numpy as np


def folded_weights(transformer) -> dict:
    """The folded weights of a `t2t_relpos.models.Transformer`.

    Returns:
        A nested dict of float32 arrays; with width D, N heads of depth H, L decoder layers, V ids:

        * `source`, `target` `[V, D]`; `source_positions`, `target_positions` `[P, D]` where they
        are learned; `space` `[D]` where
          the encoder has a target space;
        * `encoder`, `decoder`: a list of layers; in a layer `self`, and in the decoder `cross`, an
            attention; `feed_forward`
          (`inner`, `inner_bias`, `outer`, `outer_bias`); `norms`, pairs of gain and offset, used by
          post-norm only;
        * `memory` `[D, 2 L D]`, `memory_bias`: keys and values of the source for all layers: key 0,
        value 0, key 1, …; * `logits` `[D, V]`, `logits_bias` `[V]`.

        An attention has `input` (`[D, 3 D]`: query, key, value; in `cross` `[D, D]`, the query
        only), `input_bias`, `output` `[D, D]`, and `key_table`, `value_table` where it has them.
    """
    fold = _Fold(transformer.config.normalize_first)
    none = (1.0, 0.0)
    memory = [
        _exact(part)
        for layer in transformer.decoder_layers
        for part in _key_and_value(layer.cross_attention)
    ]
    memory, memory_bias = fold.reading(
        np.concatenate(memory, axis=1), 0.0, _affine(transformer.encoder_norm, none)
    )
    logits = _exact(transformer.output_embedding.embeddings).T
    logits, logits_bias = fold.reading(logits, 0.0, _affine(transformer.decoder_norm, none))
    weights = {
        **fold.embeddings(transformer),
        "encoder": [fold.layer(layer) for layer in transformer.encoder_layers],
        "decoder": [fold.layer(layer) for layer in transformer.decoder_layers],
        "memory": memory,
        "memory_bias": memory_bias,
        "logits": logits,
        "logits_bias": logits_bias,
    }
    return _to_float32(weights)


class _Fold:
    """The rules, which differ between pre-norm and post-norm."""

    def __init__(self, normalize_first):
        self.normalize_first = normalize_first

    def centred(self, writes):
        """What adds `[..., D]` to the residual stream."""
        return writes - writes.mean(axis=-1, keepdims=True) if self.normalize_first else writes

    def reading(self, kernel, bias, affine):
        """Kernel and bias of a product that reads what was normalized, with the gain and offset of
        that.
        """
        bias = bias + np.zeros(kernel.shape[1])
        if not self.normalize_first:
            return kernel, bias
        gain, offset = (part * np.ones(len(kernel)) for part in affine)
        return gain[:, None] * kernel, bias + offset @ kernel

    def embeddings(self, transformer):
        config, weights = transformer.config, {}
        for name in ("source", "target"):
            table = (
                _exact(getattr(transformer, f"{name}_embedding").embeddings)
                * config.hidden_dim**0.5
            )
            table[0] = 0.0
            weights[name] = self.centred(table)
            if config.position == "learned":
                positions = getattr(transformer, f"{name}_position")
                weights[f"{name}_positions"] = self.centred(_exact(positions.embeddings))
        if config.target_space_id is not None:
            weights["space"] = self.centred(
                _exact(transformer.target_space_embedding)[config.target_space_id]
            )
        return weights

    def layer(self, layer):
        norms = {"self": _affine(layer.self_attention_residual.norm)}
        weights = {"self": self._attention(layer.self_attention, norms["self"], with_memory=True)}
        if hasattr(layer, "cross_attention"):
            norms["cross"] = _affine(layer.cross_attention_residual.norm)
            weights["cross"] = self._attention(
                layer.cross_attention, norms["cross"], with_memory=False
            )
        norms["feed_forward"] = _affine(layer.feed_forward_residual.norm)
        weights["feed_forward"] = self._feed_forward(layer.feed_forward, norms["feed_forward"])
        if not self.normalize_first:
            weights["norms"] = {name: list(affine) for name, affine in norms.items()}
        return weights

    def _attention(self, attention, affine, with_memory):
        parts = [_exact(attention.query_dense.matrix) * attention.key_dim**-0.5]
        if with_memory:
            parts += [_exact(part) for part in _key_and_value(attention)]
        kernel, bias = self.reading(np.concatenate(parts, axis=1), 0.0, affine)
        weights = {
            "input": kernel,
            "input_bias": bias,
            "output": self.centred(_exact(attention.output_dense.matrix)),
        }
        for name in ("key", "value"):
            embedding = getattr(attention, f"{name}_embedding")
            if embedding is not None:
                weights[f"{name}_table"] = _exact(embedding.table)
        return weights

    def _feed_forward(self, feed_forward, affine):
        inner, outer = feed_forward.inner, feed_forward.outer
        kernel, bias = self.reading(_exact(inner.kernel), _exact(inner.bias), affine)
        return {
            "inner": kernel,
            "inner_bias": bias,
            "outer": self.centred(_exact(outer.kernel)),
            "outer_bias": self.centred(_exact(outer.bias)),
        }


def _key_and_value(attention):
    return attention.key_dense.matrix, attention.value_dense.matrix


def _affine(norm, default=None):
    """(gain, offset) of a LayerNormalization."""
    return default if norm is None else (_exact(norm.gamma), _exact(norm.beta))


def _exact(weight):
    return np.array(weight, "float64")


def _to_float32(weights):
    if isinstance(weights, dict):
        return {name: _to_float32(part) for name, part in weights.items()}
    if isinstance(weights, list):
        return [_to_float32(part) for part in weights]
    return weights.astype("float32")
