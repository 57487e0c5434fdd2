"""The signatures of an exported model, which translate strings in one TensorFlow graph.

Arguments are checked inside the graph, so every client gets the message. The module tracks
tf.Variables and resources but no Keras objects, so that loading the SavedModel requires only
tensorflow and tensorflow_text.
"""

import functools

import keras
import tensorflow as tf

from t2t_relpos._conventions import NO_OUTPUT_SCORE
from t2t_relpos.attention.call import lengths_up_to
from t2t_relpos.decoding import DecodingResult, beam_search, length_penalty
from t2t_relpos.models.folded import FoldedTransformer, fold_weights

from ..data.tokenizer import EOS_ID, PAD_ID, Tokenizers
from ..model_dir import ModelDirectory
from .translation_settings import TranslationSettings, longest_input
from .warmup import warmup_requests

_WIDEST_SMALL_BEAM = 256
# Results that have a value for each translation.
_BY_TRANSLATION = ("translations", "scores", "complete")
_TEXT = tf.TensorSpec([None], tf.string, name="text")


class TranslationModule(tf.Module):
    """A module that translates batches of strings with a Transformer and beam search.

    The translation of a sentence does not depend on the other sentences of its batch, and every
    string is accepted: invalid UTF-8 is replaced by U+FFFD, and sentences longer than
    `max_input_length` are truncated. The translation of a blank sentence is empty, with score 0.

    The argument `text` is always a string tensor of shape `[B]`. Other ranks are an error, because
    the tokenizer would flatten them.

    Args:
        transformer: a `FastTransformer`, or another object with `config`, `start_search` and
            `score`, such as a `t2t_relpos.models.Transformer`.
        tokenizers: the `trainer.data.tokenizer.Tokenizers`.
        settings: default options and limits. Default: `TranslationSettings()`.

    Attributes:
        source, target: a `TextModule` for each vocabulary; the same if there is one.
        ids, tokenize, detokenize: the functions `ids` and `tokenize` of `source`, and `detokenize`
            of `target`.

    Raises:
        ValueError: if the tokenizers and the Transformer have different vocabulary sizes, or
            `max_input_length` is above the Transformer's number of learned positions.
    """

    def __init__(
        self, transformer, tokenizers: Tokenizers, settings: TranslationSettings | None = None
    ):
        super().__init__(name="translation")
        self.settings = settings or TranslationSettings()
        _check_fit(transformer.config, tokenizers, self.settings)
        self.tokenizers = tokenizers
        self.source = self.target = TextModule(tokenizers.target)
        if not tokenizers.is_shared:
            self.source = TextModule(tokenizers.source)
        self.ids, self.tokenize = self.source.ids, self.source.tokenize
        self.detokenize = self.target.detokenize
        self.transformer = transformer

    @classmethod
    def from_model_dir(
        cls, path, settings: TranslationSettings | None = None, precision: str = "float32"
    ) -> "TranslationModule":
        """Returns the module of a model directory.

        Args:
            path: the model directory.
            settings: as for the class. Default: `max_input_length` is the `--max_length` of the
                training run, at least 256.
            precision: as for `FastTransformer`.
        """
        directory = ModelDirectory.open(path)
        if settings is None:
            settings = TranslationSettings(max_input_length=longest_input(directory))
        transformer = FastTransformer(directory.load_model(), precision)
        return cls(transformer, directory.load_tokenizers(), settings)

    @tf.function(input_signature=[_TEXT], autograph=False)
    def serve(self, text):
        """Translates texts with the settings of the module.

        Args:
            text: string `[B]`.

        Returns:
            A dict: `translations`, string `[B]`; `scores`, float32 `[B]`, log-probability divided
            by the length penalty; `truncated`, bool `[B]`, whether the sentence was truncated;
            `complete`, bool `[B]`, whether the translation ends below the maximum length.

        Raises:
            tf.errors.InvalidArgumentError: when the graph runs, if `text` has another rank.
        """
        settings = self.settings
        arguments = settings.beam_size, settings.alpha, settings.longest_translation, 1
        results = self._translate_with(lambda ids: self._search(ids, *arguments), text, 1)
        return results | {name: results[name][:, 0] for name in _BY_TRANSLATION}

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
        """Translates texts with the settings of the request.

        Args:
            text: string `[B]`.
            beam_size: int32, hypotheses kept per sentence, from 1 to the settings' `max_beam_size`.
            alpha: float32, exponent of the length penalty, finite and at least 0.
            max_length: int32, maximum number of ids of a translation, with EOS, from 1 to the
                settings' `longest_translation`. A translation also has at most `extra_length` ids
                more than its source.
            num_results: int32 n, translations per sentence, from 1 to `beam_size`.

        Returns:
            A dict as in `serve`, with `translations`, `scores` and `complete` of shape `[B, n]`,
            best first. If fewer than n translations end within the limit, others follow, which are
            not complete. Missing ones, such as those of a blank sentence, are empty, have the score
            -1e7 and are not complete.

        Raises:
            tf.errors.InvalidArgumentError: when the graph runs, for arguments out of range.
        """
        arguments = {"beam_size": beam_size, "alpha": alpha, "max_length": max_length}
        arguments["num_results"] = num_results
        limits = self.settings.max_beam_size, self.settings.longest_translation
        arguments = checked_search(arguments, *limits)
        search = functools.partial(self._search, **arguments)
        return self._translate_with(search, text, arguments["num_results"])

    @tf.function(
        input_signature=[_TEXT, tf.TensorSpec([None], tf.string, name="translation")],
        autograph=False,
    )
    def score(self, text, translation):
        """Returns the log-probabilities and alignments of given translations.

        The scores of `translate` are these `scores` divided by `((5 + lengths) / 6) ** alpha`, with
        two exceptions: blank sentences, and translations whose tokens in the search differ from
        those of the tokenizer.

        Args:
            text: string `[B]`.
            translation: string `[B]`.

        Returns:
            A dict. All lengths and tokens include EOS. `token_scores`, float32 `[B, T]`:
            log-probabilities, padded with 0. `scores`, float32 `[B]`: their sums. `tokens`, string
            `[B, T]`, and `source_tokens`, string `[B, S]`: padded with "". `lengths` and
            `source_lengths`, int32 `[B]`. `alignments`, float32 `[B, T, S]`: cross-attention
            weights of the last decoder layer, averaged over heads, padded with 0. `truncated`, bool
            `[B]`: whether the source or the translation was truncated. Translations are truncated
            to `longest_translation` ids.

        Raises:
            tf.errors.InvalidArgumentError: when the graph runs, if the numbers of texts and
                translations differ.
        """
        text, translation = checked_pairs(text, translation)
        # The maximum length of an empty batch is undefined. Add a blank pair, and remove it below.
        count = tf.size(text)
        blank = tf.fill([tf.cast(count == 0, tf.int32)], "")
        text, translation = tf.concat([text, blank], 0), tf.concat([translation, blank], 0)
        source, source_truncated = self._truncated_ids(text)
        targets = self.target.encode(translation)
        is_long = targets.row_lengths() > self.settings.longest_translation
        targets = targets[:, : self.settings.longest_translation]
        source_ids, target_ids = source.to_tensor(PAD_ID), targets.to_tensor(PAD_ID)
        settings = self.settings
        with lengths_up_to(max(settings.max_input_length, settings.longest_translation)):
            scores, alignments = self.transformer.score(
                source_ids, target_ids, return_alignments=True
            )
        is_pair = (target_ids != PAD_ID)[:, :, None] & (source_ids != PAD_ID)[:, None, :]
        results = scores._asdict() | {
            "tokens": self.tokenizers.target.pieces(target_ids),
            "source_tokens": self.tokenizers.source.pieces(source_ids),
            "source_lengths": _lengths(source),
            "alignments": tf.where(is_pair, alignments, 0.0),
            "truncated": source_truncated | is_long,
        }
        return {name: value[:count] for name, value in results.items()}

    @tf.function(input_signature=[], autograph=False)
    def defaults(self):
        """Returns the arguments with which `translate` is equivalent to `serve`."""
        settings = self.settings
        return {
            "beam_size": tf.constant(settings.beam_size),
            "alpha": tf.constant(settings.alpha),
            "max_length": tf.constant(settings.longest_translation),
            "num_results": tf.constant(1),
        }

    @property
    def signatures(self) -> dict:
        """The signatures of the SavedModel by name."""
        names = ("translate", "score", "tokenize", "ids", "detokenize")
        return {"serving_default": self.serve} | {name: getattr(self, name) for name in names}

    def warmup_requests(self):
        """Yields (signature, arguments) of the requests that warm up a server."""
        yield from warmup_requests(self.tokenizers, self.settings)

    def _translate_with(self, search, text, num_results):
        """Returns the dict of `translate`. `search` is a function of ragged ids."""
        ids, truncated = self._truncated_ids(text)
        nonblank = tf.where(ids.row_lengths() > 1)  # [n, 1]. Blank sentences have only EOS.
        none = [tf.zeros([0, num_results], dtype) for dtype in (tf.string, tf.float32, tf.bool)]
        translations, scores, complete = tf.cond(
            tf.size(nonblank) > 0,
            lambda: search(tf.gather(ids, nonblank[:, 0])),
            lambda: tuple(none),
        )
        # A blank sentence has a single translation, which is empty.
        is_first = tf.tile(tf.range(num_results)[None] == 0, [tf.size(text), 1])
        blank_scores = tf.where(is_first, 0.0, NO_OUTPUT_SCORE)
        return {
            "translations": tf.scatter_nd(nonblank, translations, tf.shape(is_first, tf.int64)),
            "scores": tf.tensor_scatter_nd_update(blank_scores, nonblank, scores),
            "truncated": truncated,
            "complete": tf.tensor_scatter_nd_update(is_first, nonblank, complete),
        }

    def _truncated_ids(self, text):
        """Returns ragged ids truncated to `max_input_length`, and whether each was truncated."""
        ids = self.source.encode(text)
        limit = self.settings.max_input_length
        subword_ids = ids[:, :-1]
        eos = tf.fill([ids.nrows(), 1], EOS_ID)
        return tf.concat([subword_ids[:, : limit - 1], eos], axis=1), ids.row_lengths() > limit

    def _search(self, ids, beam_size, alpha, max_length, num_results):
        """Returns the results of `_texts` for ragged ids, B >= 1."""
        limit = tf.minimum(_lengths(ids) + self.settings.extra_length, max_length)
        longest = tf.reduce_max(limit)
        source = ids.to_tensor(PAD_ID)
        with lengths_up_to(self.settings.max_input_length):
            state, step = self.transformer.start_search(source, longest, beam_size, growing=True)
        found = beam_search(
            step,
            state,
            batch_size=tf.shape(source)[0],
            max_length=longest,
            beam_size=beam_size,
            alpha=alpha,
            num_results=num_results,
            early_stopping=self.settings.early_stopping,
            eos_id=EOS_ID,
            pad_id=PAD_ID,
            length_limit=limit,
        )
        return self._texts(_without_missing_ids(found, alpha))

    def _texts(self, found):
        """Returns translations, scores, and whether they are complete, each `[B, n]`."""
        flat = tf.reshape(found.ids, [-1, tf.shape(found.ids)[2]])
        texts = self.tokenizers.target.detokenize(flat)
        complete = tf.reduce_any(found.ids == EOS_ID, axis=-1)
        return tf.reshape(texts, tf.shape(found.scores)), found.scores, complete


def encode(tokenizer, text: tf.Tensor) -> tf.RaggedTensor:
    """Returns the ids of texts `[B]` with EOS, ragged. Strips texts, as tensor2tensor does."""
    # TensorFlow does not compare the shape of a signature's argument with its input spec.
    return tokenizer.tokenize(tf.strings.strip(tf.ensure_shape(text, [None])))


class TextModule(tf.Module):
    """A module that converts texts to ids and back with one `Tokenizer`."""

    def __init__(self, tokenizer):
        super().__init__(name="text")
        self._tokenizer = tokenizer

    def encode(self, text):
        """Returns the ids of texts `[B]` with EOS, ragged."""
        return encode(self._tokenizer, text)

    @tf.function(input_signature=[_TEXT], autograph=False)
    def ids(self, text):
        """Returns `ids`, int32 `[B, T]`, with EOS and padded with 0, and `lengths`, int32 `[B]`."""
        ids = self.encode(text)
        return {"ids": ids.to_tensor(PAD_ID), "lengths": _lengths(ids)}

    @tf.function(input_signature=[_TEXT], autograph=False)
    def tokenize(self, text):
        """Returns `tokens`, string `[B, T]`, with EOS and padded with "", and `lengths` `[B]`."""
        ids = self.encode(text)
        return {"tokens": self._tokenizer.pieces(ids.to_tensor(PAD_ID)), "lengths": _lengths(ids)}

    @tf.function(
        input_signature=[tf.TensorSpec([None, None], tf.int32, name="ids")], autograph=False
    )
    def detokenize(self, ids):
        """Returns `text`, string `[B]`, of int32 `[B, T]` up to the first EOS of each sentence.

        Raises:
            tf.errors.InvalidArgumentError: when the graph runs, for ids outside the vocabulary.
        """
        ids = checked(ids, [check_ids(ids, self._tokenizer.vocab_size)])
        return {"text": self._tokenizer.detokenize(ids)}


def _without_missing_ids(found, alpha):
    """Returns a result whose missing hypotheses have no ids and the score `NO_OUTPUT_SCORE`."""
    # A missing hypothesis has a very low log-probability. The length penalty may have raised its
    # score above the threshold, so both are compared.
    log_probs = found.scores * length_penalty(found.lengths, alpha)
    is_missing = tf.minimum(found.scores, log_probs) < NO_OUTPUT_SCORE / 2
    return DecodingResult(
        ids=tf.where(is_missing[..., None], PAD_ID, found.ids),
        scores=tf.where(is_missing, NO_OUTPUT_SCORE, found.scores),
        lengths=tf.where(is_missing, 0, found.lengths),
    )


def _lengths(ids):
    return tf.cast(ids.row_lengths(), tf.int32)


def _check_fit(config, tokenizers, settings):
    # Each step selects 2 * beam_size ids. Only for small vocabularies there may be fewer.
    widest = max(config.vocab_size // 2, _WIDEST_SMALL_BEAM)
    if settings.max_beam_size > widest:
        raise ValueError(
            f"Expected a beam size of at most {widest} for a vocabulary of {config.vocab_size} "
            f"tokens. Received: {settings.max_beam_size}. Lower --beam_size or --max_beam_size."
        )
    check_vocabulary(config.vocab_size, tokenizers.target)
    check_vocabulary(config.num_source_ids, tokenizers.source, "source ")
    limit = config.num_positions
    if limit is not None and settings.max_input_length > limit:
        raise ValueError(
            f"Expected max_input_length of at most {limit}, the model's number of learned "
            f"positions. Received: {settings.max_input_length}. Use --max_input_length={limit} or "
            "less."
        )


def check_vocabulary(vocab_size: int, tokenizer, side: str = ""):
    """Raises ValueError if a model and a tokenizer have different vocabulary sizes."""
    if vocab_size != tokenizer.vocab_size:
        raise ValueError(
            f"Expected a {side}tokenizer with the model's {vocab_size} ids. Received: a tokenizer "
            f"with {tokenizer.vocab_size} ids. Use the vocabulary that the model was trained with."
        )


class FastTransformer(tf.Module):
    """A copy of a Transformer as a `FoldedTransformer`, without Keras objects.

    `precision` is the `kernel_dtype` of `fold_weights`, "float32" or "bfloat16".
    """

    def __init__(self, transformer, precision="float32"):
        super().__init__(name="fast_transformer")
        self.config = transformer.config
        self.weights = keras.tree.map_structure(
            lambda x: tf.Variable(x, trainable=False) if tf.is_tensor(x) else x,
            fold_weights(transformer, "float64", precision),
        )
        folded = FoldedTransformer(self.config, self.weights)
        self.start_search, self.score = folded.start_search, folded.score


_MAXIMUM = "maximum of this export (--{} of trainer.export)"


def checked_search(arguments: dict, max_beam_size: int, longest: int) -> dict:
    """Returns the arguments of `translate`, with control dependencies on checks of their range.

    `longest` is the maximum `max_length`.
    """
    alpha, beam_size = arguments["alpha"], arguments["beam_size"]
    lengths = "max_input_length and --extra_length"
    checks = [
        _check_range(arguments, "beam_size", max_beam_size, _MAXIMUM.format("max_beam_size")),
        _check_range(arguments, "num_results", beam_size, "beam_size"),
        _check_range(arguments, "max_length", longest, _MAXIMUM.format(lengths)),
        (
            (alpha >= 0.0) & (alpha < float("inf")),
            ["Expected alpha to be a finite number of at least 0. Received: ", alpha],
        ),
    ]
    return checked(arguments, checks)


def checked_pairs(text: tf.Tensor, translation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns texts and translations `[B]`, with a control dependency on a check of their sizes."""
    text, translation = (tf.ensure_shape(strings, [None]) for strings in (text, translation))
    texts, translations = tf.size(text), tf.size(translation)
    message = ["Expected a translation for each text. Received: ", texts, " texts and "]
    check = texts == translations, [*message, translations, " translations"]
    return checked((text, translation), [check])


def check_ids(ids: tf.Tensor, vocab_size: int) -> tuple:
    """Returns (condition, parts of the message) for ids of a vocabulary, as `checked` takes it."""
    smallest, largest = tf.reduce_min(ids), tf.reduce_max(ids)
    message = [f"Expected ids from 0 to {vocab_size - 1}. Received: ids from ", smallest, " to "]
    return (smallest >= 0) & (largest < vocab_size), [*message, largest]


def _check_range(arguments, name, most, limit):
    """Returns (condition, parts of the message) for an argument from 1 to `most`."""
    value = arguments[name]
    message = [f"Expected {name} from 1 to ", most, f", the {limit}. Received: ", value]
    return (value >= 1) & (value <= most), message


def checked(tensors, checks: list):
    """Returns tensors in any structure, with control dependencies on assertions.

    `checks` are pairs of a condition and the parts of its message, which become a single string, so
    that clients can read it. Only the first failure is reported.
    """
    done = []
    for holds, message in checks:
        parts = [part if isinstance(part, str) else _as_string(part) for part in message]
        with tf.control_dependencies(done):
            done = [tf.debugging.Assert(holds, [tf.strings.join([*parts, "."])])]
    with tf.control_dependencies(done):
        return tf.nest.map_structure(tf.identity, tensors)


def _as_string(number):
    number = tf.convert_to_tensor(number)
    return tf.strings.as_string(number, shortest=number.dtype.is_floating)
