"""How likely a model finds given outputs, and what they come from."""

from keras import ops

from t2t_relpos.decoding import score_tokens


class ScoresPairs:
    """What an encoder-decoder with `logits_and_attention` and `decoder_layers` gets: `score`."""

    def score(self, source, targets, alpha=0.0, return_alignments=False, layer=None):
        """How likely given outputs are.

        Args:
            source: int ids `[B, S]`, 0 = padding.
            targets: int ids `[B, T]`, with their ends of sentence, 0 = padding.
            alpha: exponent of the length penalty; with that of a `beam_search`,
                the scores are those that it gives for the same ids.
            return_alignments: whether to return (`TokenScores`, alignments).
            layer: the decoder layer whose attention to the source the alignments
                are, from 0 or, negative, from the end. Default: the last.

        Returns:
            `TokenScores`, and on request alignments, float32 `[B, T, S]`: the
            weights with which the step that predicts `targets[:, t]` attends to
            the source, the mean over the heads. They sum to 1, with 0 on padding
            of the source; those on padding of the targets mean nothing.

        Raises:
            ValueError: a layer that the decoder does not have, or one without
                `return_alignments`.

        Example:
        >>> import numpy as np
        >>> from keras import ops
        >>> from t2t_relpos.models import Transformer, TransformerConfig
        >>> model = Transformer(TransformerConfig.from_preset("tiny", vocab_size=11))
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
                "Expected `layer` only with `return_alignments=True`: it says which they are. "
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
    """From 0 on."""
    number = -1 if layer is None else layer
    if not isinstance(number, int) or not -layers <= number < layers:
        raise ValueError(
            f"Expected `layer` to be an int from {-layers} to {layers - 1}: the decoder has "
            f"{layers} layers. Received: {layer!r}"
        )
    return number % layers
