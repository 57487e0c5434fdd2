"""One layer of the Transformer's decoder."""

import keras

from t2t_relpos.layers.transformer_encoder import TransformerEncoder, key_mask_of


@keras.saving.register_keras_serializable(package="t2t_relpos")
class TransformerDecoder(TransformerEncoder):
    """Causal self-attention, attention to the encoder, and a feed-forward network.

    Args:
        relative_cross_attention: whether the attention to the encoder has
            relative positions too: target position `i` then is at source
            position `i`, with separate tables.
        **kwargs: those of `TransformerEncoder`.

    Call arguments:
        inputs: `[B, T, D]`.
        encoded: `[B, S, D]`, what the encoder gave.
        encoded_mask: bool `[B, S]`, True = a real source position; default the
            mask of a mask_zero embedding.
        training: whether dropouts are on.
        return_attention_scores: whether to return (outputs, scores).
        packing: a `Packing` `[B, T]`: inputs and outputs are `[1, P, D]`, all
            tokens one after the other.
        encoded_packing: a `Packing` `[B, S]`: the same of `encoded`.

    Returns:
        outputs `[B, T, D]`, and on request scores `[B, N, T, S]`: the weights of
        the attention to the encoder, before dropout.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.layers import TransformerDecoder
    >>> layer = TransformerDecoder(intermediate_dim=16, num_heads=2, max_relative_position=4)
    >>> tuple(layer(np.ones((3, 5, 8)), np.ones((3, 7, 8))).shape)
    (3, 5, 8)
    """

    def __init__(self, *args, relative_cross_attention=False, **kwargs):
        super().__init__(*args, **kwargs)
        self.relative_cross_attention = relative_cross_attention

    def build(self, inputs_shape, encoded_shape, encoded_mask_shape=None):
        super().build(inputs_shape)
        self.cross_attention = self.make_attention(
            "cross_attention", inputs_shape[-1], relative=self.relative_cross_attention
        )
        self.cross_attention.build(inputs_shape, encoded_shape)
        self.cross_attention_residual = self.make_residual("cross_attention_residual", inputs_shape)

    def call(
        self,
        inputs,
        encoded,
        encoded_mask=None,
        training=None,
        return_attention_scores=False,
        packing=None,
        encoded_packing=None,
    ):
        mask = key_mask_of(encoded, encoded_mask)
        x = self.self_attention_residual(
            inputs,
            sublayer=lambda y: self.self_attention(
                y,
                y,
                use_causal_mask=True,
                training=training,
                query_packing=packing,
                value_packing=packing,
            ),
            training=training,
        )
        scores = []

        def attend_to_source(y):
            found = self.cross_attention(
                y,
                encoded,
                attention_mask=mask,
                return_attention_scores=return_attention_scores,
                training=training,
                query_offset=0,
                query_packing=packing,
                value_packing=encoded_packing,
            )
            if not return_attention_scores:
                return found
            scores.append(found[1])
            return found[0]

        x = self.cross_attention_residual(x, sublayer=attend_to_source, training=training)
        x = self.feed_forward_residual(
            x, sublayer=lambda y: self.feed_forward(y, training=training), training=training
        )
        return (x, scores[0]) if return_attention_scores else x

    def start_cache(self, batch_size, max_length):
        """An empty cache of `max_length` target positions for `step`."""
        return self.self_attention.start_cache(batch_size, max_length)

    def project_encoded(self, encoded):
        """Keys and values of the source, `[B, N, S, H]`, made once for all steps."""
        return {
            "key": self.cross_attention.project_key(encoded),
            "value": self.cross_attention.project_value(encoded),
        }

    def step(self, inputs, cache, context, encoded_mask, position):
        """One target position, with the earlier ones from the cache.

        Args:
            inputs: `[rows, 1, D]`.
            cache: as `start_cache` and this method return it.
            context: what `project_encoded` returns.
            encoded_mask: bool `[rows, S]`.
            position: int32 `[rows]`, every row's own.

        Returns:
            (outputs `[rows, 1, D]`, the cache with this position written).
        """
        written = {}

        def attend_to_targets(y):
            outputs, written["cache"] = self.self_attention.step(y, cache, position)
            return outputs

        x = self.self_attention_residual(inputs, sublayer=attend_to_targets)
        x = self.cross_attention_residual(
            x,
            sublayer=lambda y: self.cross_attention.attend_to(
                y,
                context["key"],
                context["value"],
                encoded_mask[:, None, None, :],
                query_offset=position,
            ),
        )
        return self.feed_forward_residual(x, sublayer=self.feed_forward), written["cache"]

    def get_config(self):
        return {
            **super().get_config(),
            "relative_cross_attention": self.relative_cross_attention,
        }
