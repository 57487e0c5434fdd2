"""Scores and alignments of given outputs."""

from keras import ops

from t2t_relpos.decoding import score_tokens


class ScoresPairs:
    """Adds `score` to an encoder-decoder with `logits_and_attention` and `decoder_layers`."""

    def score(self, source, targets, alpha=0.0, return_alignments=False, layer=None):
        """Returns the log-probabilities of given outputs.

        Args:
            source: int ids `[B, S]`, padded with 0.
            targets: int ids `[B, T]` including ends of sentences, padded with 0.
            alpha: exponent of the length penalty. With the same value, scores are equal to those
                of `beam_search`.
            return_alignments: whether to return (`TokenScores`, alignments).
            layer: index of the decoder layer whose cross-attention gives the alignments. Default:
                the last.

        Returns:
            `TokenScores`, or (`TokenScores`, alignments float32 `[B, T, S]`). Alignments are the
            cross-attention weights of the step that predicts `targets[:, t]`, the mean over the
            heads. They are 0 on padding of the source and not defined on padding of the targets.

        Raises:
            ValueError: if the decoder has no such layer, or `layer` is given without
                `return_alignments`.

        Example:
        >>> import numpy as np
        >>> from keras import ops
        >>> from t2t_relpos.models import Transformer
        >>> model = Transformer(config)  # config: the example of TransformerConfig
        >>> source, targets = np.array([[5, 7, 9, 1]]), np.array([[3, 1, 0]])
        >>> scores, alignments = model.score(source, targets, return_alignments=True)
        >>> ops.convert_to_numpy(scores.lengths).tolist(), tuple(alignments.shape)
        ([2], (1, 3, 4))
        """
        number = None
        if return_alignments:
            number = _number_of(layer, len(self.decoder_layers))
        elif layer is not None:
            raise ValueError(
                "Expected `layer` only with `return_alignments=True`: it selects the alignments. "
                f"Received: layer={layer!r}"
            )
        inputs = {"inputs": source, "targets": targets}
        logits, attention = self.logits_and_attention(
            inputs, attention_layer=number, training=False
        )
        scores = score_tokens(logits, targets, alpha=alpha)
        if not return_alignments:
            return scores
        return scores, ops.mean(ops.cast(attention, "float32"), axis=1)


def _number_of(layer, layers):
    """Returns the index of a layer, counted from 0."""
    number = -1 if layer is None else layer
    if not isinstance(number, int) or not -layers <= number < layers:
        raise ValueError(
            f"Expected `layer` to be an int from {-layers} to {layers - 1}: the decoder has "
            f"{layers} layers. Received: {layer!r}"
        )
    return number % layers
