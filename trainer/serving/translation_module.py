"""The translator that is exported: strings in, strings out, everything between in one graph.

Only tf.Variables and the tokenizer's resource are tracked, never a Keras object, so that the
SavedModel loads with nothing but tensorflow and tensorflow_text.
"""

import tensorflow as tf

from t2t_relpos.decoding import score_tokens
from trainer.data.token_ids import EOS_ID, PAD_ID
from trainer.model_dir import ModelDirectory
from trainer.serving.decoding_defaults import TranslationSettings
from trainer.serving.fast_transformer import FastTransformer
from trainer.serving.n_best import ABSENT, n_best
from trainer.serving.request_checks import checked_pairs, checked_search

_TEXT = tf.TensorSpec([None], tf.string, name="text")


class TranslationModule(tf.Module):
    """Translates batches of strings with a Transformer, a tokenizer and a beam search, all in the
    graph.

    An answer does not depend on the batch that its sentence sits in: each sentence's output is
    limited by its own length. No row fails a batch: bytes that are not UTF-8 count as U+FFFD, a
    sentence without ids has the empty translation and score 0, one longer than `max_input_length`
    is cut and its row of `truncated` is true.

    Args:
        transformer: has `config`, `start(source, max_length, beam_size)` and, for the signature
            `score` only, `score(source, targets)`, as `FastTransformer`.
        tokenizer: has in-graph `tokenize`, whose rows end in EOS, `detokenize`, `pieces` and
            `vocab_size`, as `trainer.data.tokenizer.Tokenizer`.
        settings: a `TranslationSettings`; its defaults where omitted.

    Raises:
        ValueError: where the tokenizer has another vocabulary than the Transformer, or sentences
            are to be longer than the Transformer has positions for.
    """

    def __init__(self, transformer, tokenizer, settings: TranslationSettings | None = None):
        super().__init__(name="translation")
        self.settings = settings or TranslationSettings()
        _check_fit(transformer.config, tokenizer, self.settings)
        self.tokenizer = tokenizer
        self.transformer = transformer

    @classmethod
    def from_model_dir(
        cls, path, settings: TranslationSettings | None = None
    ) -> "TranslationModule":
        """The translator of a model directory.

        Args:
            path: the directory that `trainer.train` wrote.
            settings: as for the class.

        Raises:
            ValueError: where it is no model directory, holds no trained model yet, or its parts
                don't fit; and as the class.
        """
        directory = ModelDirectory.open(path)
        return cls(FastTransformer(directory.load_model()), directory.load_tokenizer(), settings)

    @tf.function(input_signature=[_TEXT], autograph=False)
    def serve(self, text):
        """Translates with the settings of the module.

        Args:
            text: string `[B]`.

        Returns:
            A dict: `translations` string `[B]`, `scores` float32 `[B]` (log-probability over the
                length penalty),
            `truncated` bool `[B]` (only the beginning of the sentence was translated).
        """
        settings = self.settings
        answer = self._answer(
            text, settings.beam_size, settings.alpha, settings.longest_translation, 1
        )
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
            max_length: int32, most ids of a translation, EOS included, from 1 to the settings'
                `longest_translation`. Each sentence is limited by its own ids and the settings'
                `extra_length` as well.
            num_results: int32 n, translations of each sentence, from 1 to `beam_size`.

        Returns:
            A dict: `translations` string `[B, n]`, best first, `scores` float32 `[B, n]` and
                `truncated` bool `[B]`, as
            `serve`. Where fewer than n translations end within the limit, the empty translation
            with the score -1e7 is in the places that are left, so that every other score is
            above it; if none ends, those that the limit has cut are given.

        Raises:
            tf.errors.InvalidArgumentError: when the graph runs, for arguments out of range.
        """
        arguments = {
            "beam_size": beam_size,
            "alpha": alpha,
            "max_length": max_length,
            "num_results": num_results,
        }
        checked = checked_search(
            arguments, self.settings.max_beam_size, self.settings.longest_translation
        )
        return self._answer(text, **checked)

    @tf.function(
        input_signature=[_TEXT, tf.TensorSpec([None], tf.string, name="translation")],
        autograph=False,
    )
    def score(self, text, translation):
        """How likely the model finds given translations, and what it looks at for each of their
        tokens.

        Args:
            text: string `[B]`.
            translation: string `[B]`, one for each.

        Returns:
            A dict, EOS included everywhere: `scores` float32 `[B]`, the sum of `token_scores`
                float32 `[B, T]`, which are
            log-probabilities, padded with 0; `tokens` string `[B, T]` and `source_tokens` string
            `[B, S]`, padded with "", and their `lengths` and `source_lengths` int32 `[B]`;
            `alignments` float32 `[B, T, S]`, attention to the source, padded with 0; `truncated`
            bool `[B]`, whether either was cut, the translation to `longest_translation` ids.

            `translate` divides such a sum by `((5 + lengths) / 6) ** alpha`, so it scores the same
            translation higher for alpha above 0, given that it had split it into the same tokens.
            To a blank sentence it gives 0 without asking the model.

        Raises:
            tf.errors.InvalidArgumentError: when the graph runs, for other numbers of texts and
                translations.
        """
        text, translation = checked_pairs(text, translation)
        # An empty batch has no longest sentence: a blank pair is scored, and left out below.
        count = tf.size(text)
        blank = tf.fill([tf.cast(count == 0, tf.int32)], "")
        text, translation = tf.concat([text, blank], 0), tf.concat([translation, blank], 0)
        source, source_truncated = self._tokenize(text)
        targets = self.tokenizer.tokenize(translation)
        is_long = targets.row_lengths() > self.settings.longest_translation
        targets = targets[:, : self.settings.longest_translation]
        source_ids, target_ids = source.to_tensor(PAD_ID), targets.to_tensor(PAD_ID)
        scored, alignments = self._scored(source_ids, target_ids)
        answer = {
            "scores": scored.scores,
            "token_scores": scored.token_scores,
            "tokens": self.tokenizer.pieces(target_ids),
            "lengths": scored.lengths,
            "source_tokens": self.tokenizer.pieces(source_ids),
            "source_lengths": _lengths(source),
            "alignments": alignments,
            "truncated": source_truncated | is_long,
        }
        return {name: value[:count] for name, value in answer.items()}

    @tf.function(input_signature=[], autograph=False)
    def defaults(self):
        """The arguments of `translate` with which it does what `serve` does."""
        settings = self.settings
        return {
            "beam_size": tf.constant(settings.beam_size),
            "alpha": tf.constant(settings.alpha),
            "max_length": tf.constant(settings.longest_translation),
            "num_results": tf.constant(1),
        }

    @tf.function(input_signature=[_TEXT], autograph=False)
    def ids(self, text):
        """What the model reads: string `[B]` -> `ids` int32 `[B, T]`, EOS included, then padded
        with 0; `lengths` int32 `[B]`.
        """
        ids = self.tokenizer.tokenize(text)
        return {"ids": ids.to_tensor(PAD_ID), "lengths": _lengths(ids)}

    @tf.function(input_signature=[_TEXT], autograph=False)
    def tokenize(self, text):
        """The ids' names: string `[B]` -> `tokens` string `[B, T]`, EOS included, then padded with
        ""; `lengths` int32 `[B]`.
        """
        ids = self.tokenizer.tokenize(text)
        return {"tokens": self.tokenizer.pieces(ids.to_tensor(PAD_ID)), "lengths": _lengths(ids)}

    @tf.function(
        input_signature=[tf.TensorSpec([None, None], tf.int32, name="ids")], autograph=False
    )
    def detokenize(self, ids):
        """int32 `[B, T]` -> `text` string `[B]`.

        A row counts up to its first EOS; ids that there are none of are left out.
        """
        return {"text": self.tokenizer.detokenize(ids)}

    @property
    def signatures(self) -> dict:
        """The functions that a SavedModel serves, by the names that clients use."""
        return {
            "serving_default": self.serve,
            "translate": self.translate,
            "score": self.score,
            "tokenize": self.tokenize,
            "ids": self.ids,
            "detokenize": self.detokenize,
        }

    def _answer(self, text, beam_size, alpha, max_length, num_results):
        ids, truncated = self._tokenize(text)
        rows = tf.where(ids.row_lengths() > 1)  # [rows, 1]: blank sentences hold EOS only
        arguments = beam_size, alpha, max_length, num_results
        translations, scores = tf.cond(
            tf.size(rows) > 0,
            lambda: self._search(tf.gather(ids, rows[:, 0]), *arguments),
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

    def _scored(self, source, targets):
        """`TokenScores` of targets `[B, T]`, and alignments `[B, T, S]`, 0 at padding."""
        logits, alignments = self.transformer.score(source, targets)
        is_pair = (targets != PAD_ID)[:, :, None] & (source != PAD_ID)[:, None, :]
        return score_tokens(logits, targets), tf.where(is_pair, alignments, 0.0)

    def _tokenize(self, text):
        """Strings to ragged ids of at most max_input_length ending in EOS, and which sentences
        were cut for it.
        """
        ids = self.tokenizer.tokenize(text)
        limit = self.settings.max_input_length
        words = ids[:, :-1]
        eos = tf.fill([ids.nrows(), 1], EOS_ID)
        return tf.concat([words[:, : limit - 1], eos], axis=1), ids.row_lengths() > limit

    def _search(self, ids, beam_size, alpha, max_length, num_results):
        """Ragged source ids of at least one sentence to the best translations of each, string `[B,
        n]`, and scores `[B, n]`.
        """
        length_limit = tf.minimum(_lengths(ids) + self.settings.extra_length, max_length)
        found = n_best(
            self.transformer,
            ids.to_tensor(),
            length_limit,
            beam_size=beam_size,
            alpha=alpha,
            num_results=num_results,
            early_stopping=self.settings.early_stopping,
        )
        flat = tf.reshape(found.ids, [-1, tf.shape(found.ids)[2]])
        return tf.reshape(self.tokenizer.detokenize(flat), tf.shape(found.scores)), found.scores


def _lengths(ids):
    return tf.cast(ids.row_lengths(), tf.int32)


def _check_fit(config, tokenizer, settings):
    if config.vocab_size != tokenizer.vocab_size:
        raise ValueError(
            f"Expected a tokenizer of the {config.vocab_size} ids that the model has. Received: "
            "one of "
            f"{tokenizer.vocab_size}. Use the vocabulary that the model was trained with."
        )
    if config.position == "learned" and settings.max_input_length > config.max_length:
        raise ValueError(
            f"Expected max_input_length to be at most {config.max_length}, the positions that the "
            "model has learned. "
            f"Received: {settings.max_input_length}. Give --max_input_length={config.max_length}, "
            "or less."
        )
