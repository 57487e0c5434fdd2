"""The module that is exported: it maps strings to strings in one graph.

It tracks tf.Variables and the tokenizer's resource only, no Keras object, so that the SavedModel
loads with tensorflow and tensorflow_text only. The module is longer than 200 lines since the
signatures of an export are documented here.
"""

import functools

import tensorflow as tf

from t2t_relpos.decoding import score_tokens
from trainer.data.token_ids import EOS_ID, PAD_ID
from trainer.model_dir import ModelDirectory
from trainer.serving.compiled_search import CompiledSearches
from trainer.serving.decoding_defaults import TranslationSettings
from trainer.serving.fast_transformer import FastTransformer
from trainer.serving.n_best import n_best
from trainer.serving.request_checks import checked_pairs, checked_search
from trainer.serving.translator import ABSENT

_TEXT = tf.TensorSpec([None], tf.string, name="text")


class TranslationModule(tf.Module):
    """Translates batches of strings with a Transformer, a tokenizer and a beam search.

    The translation of a sentence does not depend on the other sentences of its batch, and no
    sentence fails a batch. Bytes that are not UTF-8 count as U+FFFD. A sentence without ids has the
    empty translation and score 0. A sentence longer than `max_input_length` is truncated.

    All functions with the argument `text` take a string tensor of shape `[B]`. Other ranks are an
    error: the tokenizer would flatten them silently.

    Args:
        transformer: has `config`, `start(source, max_length, beam_size, growing=True)` and, for the
            signature `score` only, `score(source, targets)`, as `FastTransformer`.
        tokenizer: has in-graph `tokenize`, `detokenize`, `pieces` and `vocab_size`, as
            `trainer.data.tokenizer.Tokenizer`.
        settings: a `TranslationSettings`. Default: its defaults.

    Raises:
        ValueError: if the tokenizer has another vocabulary than the Transformer, or
            `max_input_length` is above its number of learned positions.
    """

    def __init__(self, transformer, tokenizer, settings: TranslationSettings | None = None):
        super().__init__(name="translation")
        self.settings = settings or TranslationSettings()
        _check_fit(transformer.config, tokenizer, self.settings)
        self.tokenizer = tokenizer
        self.transformer = transformer

    @classmethod
    def from_model_dir(
        cls, path, settings: TranslationSettings | None = None, precision: str = "float32"
    ) -> "TranslationModule":
        """Returns the module of a model directory.

        Args:
            path: the model directory.
            settings: as for the class.
            precision: dtype of the products with weights, "float32" or "bfloat16".

        Raises:
            ValueError: if it is no model directory or has no trained model yet; and as the class.
        """
        directory = ModelDirectory.open(path)
        transformer = FastTransformer(directory.load_model(), precision)
        return cls(transformer, directory.load_tokenizer(), settings)

    @tf.function(input_signature=[_TEXT], autograph=False)
    def serve(self, text):
        """Translates with the settings of the module.

        Args:
            text: string `[B]`.

        Returns:
            A dict: `translations`, string `[B]`; `scores`, float32 `[B]`, log-probability over the
            length penalty; `truncated`, bool `[B]`, whether only the beginning was translated.

        Raises:
            tf.errors.InvalidArgumentError: when the graph runs, if `text` has another rank.
        """
        settings = self.settings
        search = self._compiled_search if settings.jit_compile else self._default_search
        answer = self._answer(text, search, 1)
        return answer | {name: answer[name][:, 0] for name in ("translations", "scores")}

    @tf.function(
        input_signature=[
            _TEXT,
            tf.TensorSpec([], tf.int32, name="beam_size"),
            tf.TensorSpec([], tf.float32, name="alpha"),
            tf.TensorSpec([], tf.int32, name="max_length"),
            tf.TensorSpec([], tf.int32, name="num_results"),
        ],
        autograph=False,
    )
    def translate(self, text, beam_size, alpha, max_length, num_results):
        """Translates with settings given by the request.

        Args:
            text: string `[B]`.
            beam_size: int32, hypotheses kept per sentence, from 1 to the settings' `max_beam_size`.
            alpha: float32, exponent of the length penalty, finite and at least 0.
            max_length: int32, largest number of ids of a translation, with EOS, from 1 to the
                settings' `longest_translation`. The limit of each sentence is also its own number
                of ids plus `extra_length`.
            num_results: int32 n, translations of each sentence, from 1 to `beam_size`.

        Returns:
            A dict as from `serve`, with `translations` and `scores` of shape `[B, n]`, best first.
            If fewer than n translations end within the limit, the other places have the empty
            translation and the score -1e7. If none ends, truncated translations are returned.

        Raises:
            tf.errors.InvalidArgumentError: when the graph runs, for arguments out of range.
        """
        arguments = {
            "beam_size": beam_size,
            "alpha": alpha,
            "max_length": max_length,
            "num_results": num_results,
        }
        limits = self.settings.max_beam_size, self.settings.longest_translation
        arguments = checked_search(arguments, *limits)
        search = functools.partial(self._search, **arguments)
        return self._answer(text, search, arguments["num_results"])

    @tf.function(
        input_signature=[_TEXT, tf.TensorSpec([None], tf.string, name="translation")],
        autograph=False,
    )
    def score(self, text, translation):
        """Returns the log-probabilities and alignments of given translations.

        `translate` divides the sum of the log-probabilities by `((5 + lengths) / 6) ** alpha`. The
        scores agree if the search has split the translation into the same tokens as the tokenizer.
        `translate` gives blank sentences the score 0 without running the model.

        Args:
            text: string `[B]`.
            translation: string `[B]`.

        Returns:
            A dict, with EOS included everywhere: `token_scores`, float32 `[B, T]`,
            log-probabilities, padded with 0; `scores`, float32 `[B]`, their sums; `tokens`, string
            `[B, T]`, and `source_tokens`, string `[B, S]`, padded with ""; `lengths` and
            `source_lengths`, int32 `[B]`; `alignments`, float32 `[B, T, S]`, attention to the
            source, padded with 0; `truncated`, bool `[B]`, whether the source or the translation
            was truncated, the latter to `longest_translation` ids.

        Raises:
            tf.errors.InvalidArgumentError: when the graph runs, if the numbers of texts and
                translations differ.
        """
        text, translation = checked_pairs(text, translation)
        # An empty batch has no longest sentence. A blank pair is added and removed below.
        count = tf.size(text)
        blank = tf.fill([tf.cast(count == 0, tf.int32)], "")
        text, translation = tf.concat([text, blank], 0), tf.concat([translation, blank], 0)
        source, source_truncated = self._truncated_ids(text)
        targets = self._ids(translation)
        is_long = targets.row_lengths() > self.settings.longest_translation
        targets = targets[:, : self.settings.longest_translation]
        source_ids, target_ids = source.to_tensor(PAD_ID), targets.to_tensor(PAD_ID)
        logits, alignments = self.transformer.score(source_ids, target_ids)
        is_pair = (target_ids != PAD_ID)[:, :, None] & (source_ids != PAD_ID)[:, None, :]
        answer = score_tokens(logits, target_ids)._asdict() | {
            "tokens": self.tokenizer.pieces(target_ids),
            "source_tokens": self.tokenizer.pieces(source_ids),
            "source_lengths": _lengths(source),
            "alignments": tf.where(is_pair, alignments, 0.0),
            "truncated": source_truncated | is_long,
        }
        return {name: value[:count] for name, value in answer.items()}

    @tf.function(input_signature=[], autograph=False)
    def defaults(self):
        """Returns the arguments with which `translate` does the same as `serve`."""
        settings = self.settings
        return {
            "beam_size": tf.constant(settings.beam_size),
            "alpha": tf.constant(settings.alpha),
            "max_length": tf.constant(settings.longest_translation),
            "num_results": tf.constant(1),
        }

    @tf.function(input_signature=[_TEXT], autograph=False)
    def ids(self, text):
        """Returns `ids`, int32 `[B, T]`, with EOS and padded with 0, and `lengths`, int32 `[B]`."""
        ids = self._ids(text)
        return {"ids": ids.to_tensor(PAD_ID), "lengths": _lengths(ids)}

    @tf.function(input_signature=[_TEXT], autograph=False)
    def tokenize(self, text):
        """Returns `tokens`, string `[B, T]`, with EOS and padded with "", and `lengths` `[B]`."""
        ids = self._ids(text)
        return {"tokens": self.tokenizer.pieces(ids.to_tensor(PAD_ID)), "lengths": _lengths(ids)}

    @tf.function(
        input_signature=[tf.TensorSpec([None, None], tf.int32, name="ids")], autograph=False
    )
    def detokenize(self, ids):
        """Returns `text`, string `[B]`, of int32 `[B, T]` up to the first EOS of each sentence.

        Ids out of range are left out.
        """
        return {"text": self.tokenizer.detokenize(ids)}

    @property
    def signatures(self) -> dict:
        """The signatures of the SavedModel by name."""
        names = ("translate", "score", "tokenize", "ids", "detokenize")
        return {"serving_default": self.serve} | {name: getattr(self, name) for name in names}

    def _answer(self, text, search, num_results):
        """Returns the answer of `translate`; `search` is a function of ragged ids, as `_search`."""
        ids, truncated = self._truncated_ids(text)
        rows = tf.where(ids.row_lengths() > 1)  # [rows, 1]; blank sentences have EOS only
        translations, scores = tf.cond(
            tf.size(rows) > 0,
            lambda: search(tf.gather(ids, rows[:, 0])),
            lambda: (tf.zeros([0, num_results], tf.string), tf.zeros([0, num_results])),
        )
        # A blank sentence has one translation, the empty one.
        blank_scores = tf.where(tf.range(num_results) == 0, 0.0, ABSENT)
        blank_scores = tf.tile(blank_scores[None], [tf.size(text), 1])
        return {
            "translations": tf.scatter_nd(rows, translations, tf.shape(blank_scores, tf.int64)),
            "scores": tf.tensor_scatter_nd_update(blank_scores, rows, scores),
            "truncated": truncated,
        }

    def _ids(self, text):
        """Returns the ids of `text [B]` with EOS, ragged."""
        # The runtime does not compare the shapes of a signature's arguments with its input spec.
        return self.tokenizer.tokenize(tf.ensure_shape(text, [None]))

    def _truncated_ids(self, text):
        """Returns ragged ids, at most `max_input_length` with EOS, and which were truncated."""
        ids = self._ids(text)
        limit = self.settings.max_input_length
        words = ids[:, :-1]
        eos = tf.fill([ids.nrows(), 1], EOS_ID)
        return tf.concat([words[:, : limit - 1], eos], axis=1), ids.row_lengths() > limit

    def _search(self, ids, beam_size, alpha, max_length, num_results):
        """Returns translations, string `[B, n]`, and scores `[B, n]` of ragged ids, B >= 1."""
        found = n_best(
            self.transformer,
            ids.to_tensor(),
            tf.minimum(_lengths(ids) + self.settings.extra_length, max_length),
            beam_size=beam_size,
            alpha=alpha,
            num_results=num_results,
            early_stopping=self.settings.early_stopping,
        )
        return self._texts(found)

    def _default_search(self, ids):
        settings = self.settings
        arguments = settings.beam_size, settings.alpha, settings.longest_translation, 1
        return self._search(ids, *arguments)

    def _compiled_search(self, ids):
        searches = CompiledSearches(self.transformer, self.settings)
        limit = _lengths(ids) + self.settings.extra_length
        otherwise = functools.partial(self._default_search, ids)
        return searches.run(ids.to_tensor(), limit, self._texts, otherwise)

    def _texts(self, found):
        flat = tf.reshape(found.ids, [-1, tf.shape(found.ids)[2]])
        return tf.reshape(self.tokenizer.detokenize(flat), tf.shape(found.scores)), found.scores


def _lengths(ids):
    return tf.cast(ids.row_lengths(), tf.int32)


def _check_fit(config, tokenizer, settings):
    if config.vocab_size != tokenizer.vocab_size:
        raise ValueError(
            f"Expected a tokenizer of the {config.vocab_size} ids that the model has. Received: "
            f"one of {tokenizer.vocab_size}. Use the vocabulary that the model was trained with."
        )
    if config.position == "learned" and settings.max_input_length > config.max_length:
        raise ValueError(
            f"Expected max_input_length to be at most {config.max_length}, the positions that the "
            f"model has learned. Received: {settings.max_input_length}. Give "
            f"--max_input_length={config.max_length}, or less."
        )
