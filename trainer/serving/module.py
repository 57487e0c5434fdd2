"""The translator that is exported: strings in, strings out, everything between in one graph.

Only tf.Variables and the tokenizer's resource are tracked, never a Keras object, so that the SavedModel loads with nothing but
tensorflow and tensorflow_text.
"""

import dataclasses

import tensorflow as tf

from t2t_relpos.decoding import beam_search
from trainer.model_dir import ModelDirectory

EOS_ID = 1


@dataclasses.dataclass(frozen=True)
class TranslationSettings:
    """How a `TranslationModule` decodes when a request does not say otherwise.

    Args:
        beam_size: hypotheses kept per sentence.
        alpha: exponent of the length penalty `((5 + length) / 6) ** alpha`.
        max_input_length: ids of a source sentence, EOS included; a longer one is cut and reported. The default is
            tensor2tensor's `max_length`, the longest sentence that its base settings train on.
        extra_length: ids that a translation may have beyond those of its own source. 50 as in tensor2tensor.

    Raises:
        ValueError: for a value that no search can honour.
    """

    beam_size: int = 4
    alpha: float = 0.6
    max_input_length: int = 256
    extra_length: int = 50

    def __post_init__(self):
        for name, least in (("beam_size", 1), ("max_input_length", 2), ("extra_length", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"Expected {name} to be an integer of at least {least}. Received: {value!r}.")
        if not 0.0 <= self.alpha < float("inf"):
            raise ValueError(f"Expected alpha to be a finite number of at least 0. Received: {self.alpha!r}.")


class TranslationModule(tf.Module):
    """Translates batches of strings with a Transformer, a tokenizer and a beam search, all in the graph.

    An answer does not depend on the batch that its sentence sits in: each sentence's output is limited by its own length.
    No row fails a batch: bytes that are not UTF-8 count as U+FFFD, a sentence without ids has the empty translation and
    score 0, one longer than `max_input_length` is cut and its row of `truncated` is true.

    Args:
        transformer: has `encode(ids, max_length)`, `step(ids, state)` and `weights`, as `t2t_relpos.models.Transformer`.
        tokenizer: has in-graph `tokenize`, whose rows end in EOS, `detokenize` and `vocab_size`, as
            `trainer.data.tokenizers.SentencePieceTokenizer`.
        settings: a `TranslationSettings`; its defaults where omitted.

    Raises:
        ValueError: where the tokenizer has another vocabulary than the Transformer, or sentences are to be longer than the
            Transformer has positions for.
    """

    def __init__(self, transformer, tokenizer, settings: TranslationSettings | None = None):
        super().__init__(name="translation")
        self.settings = settings or TranslationSettings()
        _check_fit(transformer.config, tokenizer, self.settings)
        self.tokenizer = tokenizer
        self.weights = [weight.value for weight in transformer.weights]
        # Bound methods are not tracked: the graph refers to the variables above, the SavedModel to no Keras layer.
        self._encode = transformer.encode
        self._step = transformer.step

    @classmethod
    def from_model_dir(cls, path, settings: TranslationSettings | None = None) -> "TranslationModule":
        """The translator of a model directory.

        Args:
            path: the directory that `trainer.train` wrote.
            settings: as for the class.

        Raises:
            ValueError: where it is no model directory, holds no trained model yet, or its parts don't fit; and as the class.
        """
        directory = ModelDirectory.open(path)
        return cls(directory.load_model(), directory.load_tokenizer(), settings)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def serve(self, text):
        """Translates with the settings of the module.

        Args:
            text: string `[B]`.

        Returns:
            A dict: `translations` string `[B]`, `scores` float32 `[B]` (log-probability over the length penalty),
            `truncated` bool `[B]` (only the beginning of the sentence was translated).
        """
        return self.translate(text, self.settings.alpha, self.settings.extra_length)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="text"),
            tf.TensorSpec([], tf.float32, name="alpha"),
            tf.TensorSpec([], tf.int32, name="extra_length"),
        ],
        autograph=False,
    )
    def translate(self, text, alpha, extra_length):
        """Translates with settings given by the request: see `serve` and `TranslationSettings`."""
        checks = [
            _check((alpha >= 0.0) & (alpha < float("inf")), "Expected a finite alpha of at least 0.", alpha),
            _check(extra_length >= 0, "Expected an extra_length of at least 0.", extra_length),
        ]
        with tf.control_dependencies(checks):
            return self._answer(tf.identity(text), alpha, extra_length)

    @tf.function(input_signature=[], autograph=False)
    def defaults(self):
        """The arguments of `translate` with which it does what `serve` does."""
        settings = self.settings
        return {
            "alpha": tf.constant(settings.alpha),
            "extra_length": tf.constant(settings.extra_length),
        }

    @property
    def signatures(self) -> dict:
        """The functions that a SavedModel serves, by the names that clients use."""
        return {"serving_default": self.serve, "translate": self.translate}

    def _answer(self, text, alpha, extra_length):
        ids, truncated = self._tokenize(text)
        rows = tf.where(ids.row_lengths() > 1)  # [rows, 1]: blank sentences hold EOS alone
        translations, scores = tf.cond(
            tf.size(rows) > 0,
            lambda: self._search(tf.gather(ids, rows[:, 0]), alpha, extra_length),
            lambda: (tf.zeros([0], tf.string), tf.zeros([0], tf.float32)),
        )
        shape = tf.shape(text, tf.int64)
        return {
            "translations": tf.scatter_nd(rows, translations, shape),
            "scores": tf.scatter_nd(rows, scores, shape),
            "truncated": truncated,
        }

    def _tokenize(self, text):
        """Strings to ragged ids of at most max_input_length ending in EOS, and which sentences were cut for it."""
        ids = self.tokenizer.tokenize(text)
        limit = self.settings.max_input_length
        words = ids[:, :-1]
        eos = tf.fill([ids.nrows(), 1], EOS_ID)
        return tf.concat([words[:, : limit - 1], eos], axis=1), ids.row_lengths() > limit

    def _search(self, ids, alpha, extra_length):
        """Ragged source ids of at least one sentence to the best translation of each, string [B], and its score [B]."""
        length_limit = tf.cast(ids.row_lengths(), tf.int32) + extra_length
        max_length = tf.reduce_max(length_limit)
        source = ids.to_tensor()
        result = beam_search(
            self._step,
            self._encode(source, max_length),
            batch_size=tf.shape(source)[0],
            max_length=max_length,
            beam_size=self.settings.beam_size,
            alpha=alpha,
            eos_id=EOS_ID,
            length_limit=length_limit,
        )
        return self.tokenizer.detokenize(result.ids[:, 0]), result.scores[:, 0]


def _check_fit(config, tokenizer, settings):
    if config.vocab_size != tokenizer.vocab_size:
        raise ValueError(
            f"Expected a tokenizer of the {config.vocab_size} ids that the model has. Received: one of "
            f"{tokenizer.vocab_size}. Use the vocabulary that the model was trained with."
        )
    if config.position == "learned" and settings.max_input_length > config.max_length:
        raise ValueError(
            f"Expected max_input_length to be at most {config.max_length}, the positions that the model has learned. "
            f"Received: {settings.max_input_length}. Give --max_input_length={config.max_length}, or less."
        )


def _check(holds, expected, received):
    return tf.debugging.Assert(holds, [expected, "Received:", received])
