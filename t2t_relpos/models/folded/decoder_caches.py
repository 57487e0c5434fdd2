"""The interface of decoder caches."""

import abc


class DecoderCaches(abc.ABC):
    """Keys and values of all hypotheses, in slots that are never reordered.

    Every step adds a slot per hypothesis. A mask of each active hypothesis, `"ancestors"`
    `[rows, slots]`, hides the slots of other hypotheses. A search reorders the masks instead of the
    larger keys and values. The rows are the active hypotheses of all sentences.

    Args:
        config: a `TransformerConfig`.
        decoder: folded weights of the decoder layers.
        beam_size: k, an int or a scalar tensor.
    """

    def __init__(self, config, decoder, beam_size):
        self.num_heads = config.num_heads
        self.depth = config.hidden_dim // config.num_heads
        self.decoder = decoder
        self.beam_size = beam_size

    @abc.abstractmethod
    def start(self, batch):
        """Returns the first state of B sentences: (a dict of tensors, masks `[B, slots]`)."""

    @abc.abstractmethod
    def open_step(self, sentences, ancestors, batch, beams):
        """Returns (masks with the new slots `[rows, slots]`, a `CachedStep`).

        Args:
            sentences: the dict of tensors of `start` or of the previous step.
            ancestors: masks `[rows, slots]`.
            batch: B, a scalar tensor.
            beams: active hypotheses per sentence, a scalar tensor.
        """

    def resize(self, sentences, ancestors, num_steps):
        """Returns `sentences` and `ancestors` with room for `num_steps` steps.

        Args:
            sentences: the dict of tensors of `start` or of the previous step.
            ancestors: masks `[rows, slots]`.
            num_steps: an int above the number of steps so far.
        """
        return sentences, ancestors


class CachedStep(abc.ABC):
    """One step with `DecoderCaches`.

    Attributes:
        time: number of the step, a scalar.
    """

    def __init__(self, time):
        self.time = time

    @abc.abstractmethod
    def add(self, cache, new):
        """Returns the cache `[B, N, slots, H]` with new entries `[B, N, k, H]`."""

    @abc.abstractmethod
    def attend(self, number, query, key, value):
        """Returns the outputs `[B, N, k, H]` of the self-attention of layer `number`."""

    def finish(self, sentences):
        """Returns `sentences` for the next step. The caller replaces the caches in it."""
        return sentences
