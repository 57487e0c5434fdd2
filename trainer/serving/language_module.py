"""The signatures of an exported language model, which continue and score ids or texts."""

import functools

import tensorflow as tf

from t2t_relpos.decoding import (
    BeamSampler,
    GreedySampler,
    Sampler,
    TopKSampler,
    TopPSampler,
    score_tokens,
)
from t2t_relpos.models.generation import DEFAULT_EXTRA_LENGTH

from ..data.tokenizer import EOS_ID, PAD_ID
from .generation_settings import GenerationSettings
from .translation_module import check_ids, check_vocabulary, checked, encode

_TEXT = tf.TensorSpec([None], tf.string, name="text")
_POSITIONS = "number of learned positions"
_SEED = tf.TensorSpec([], tf.int32, name="seed")


class LanguageModule(tf.Module):
    """A module that continues and scores batches of ids with a `CausalLM`.

    With `settings.sampler="random"`, `generate` and `generate_text` have the argument `seed`, an
    int32 scalar. Equal requests have equal outputs.

    Without a tokenizer, the module has no functions of texts.

    Attributes:
        max_length: largest number of ids of an output. None: P + 50, or the number of learned
            positions if it is smaller.
        generate: continues `prompts`, int32 `[B, P]`, padded with 0 at their ends; P may be 0. The
            outputs `ids`, int32 `[B, max_length]`, are those of `CausalLM.generate` with the
            sampler and the `max_length` of the settings, which have the same defaults. They start
            with the prompts. `lengths`, int32 `[B]`, count all ids. `scores`, float32 `[B]`, sum
            the log-probabilities of all ids, including the prompt. Beam search divides them by the
            length penalty.
        score: returns the log-probabilities of `ids`, int32 `[B, T]`: `token_scores`, float32
            `[B, T]`, padded with 0; `scores`, their sums, float32 `[B]`; `lengths`, int32 `[B]`.
        generate_text: continues `text`, string `[B]`, without EOS. Returns `texts`, string `[B]`,
            which start with the prompts, and `scores`.
        score_text: returns the same as `score` for the ids of `text`, string `[B]`, with EOS, and
            `tokens`, string `[B, T]`.

    Raises:
        ValueError: if the tokenizer and the model have different vocabulary sizes, or `max_length`
            is above the model's number of learned positions.
    """

    def __init__(self, model, tokenizer=None, settings: GenerationSettings | None = None):
        super().__init__(name="language_model")
        self.settings = settings or GenerationSettings()
        self._num_positions = model.config.num_positions or tf.int32.max
        self.max_length = self.settings.max_length
        _check_max_length(self.max_length, self._num_positions)
        if tokenizer is not None:
            check_vocabulary(model.vocab_size, tokenizer)
        self.tokenizer = tokenizer
        self.vocab_size = model.vocab_size
        # The module must track the variables, but no Keras objects.
        self.variables_of_model = [weight.value for weight in model.weights]
        self._start_search = model.start_search
        self._logits = functools.partial(model, training=False)
        self._sampler = make_sampler(self.settings, model.vocab_size)
        seed = [_SEED] if self.settings.sampler == "random" else []
        self._add("generate", self._generate, [_ids("prompts"), *seed])
        self._add("score", self._score, [_ids("ids")])
        if tokenizer is not None:
            self._add("generate_text", self._generate_text, [_TEXT, *seed])
            self._add("score_text", self._score_text, [_TEXT])

    def _add(self, name, function, specs):
        function = tf.function(function, input_signature=specs, autograph=False)
        setattr(self, name, function)

    @property
    def signatures(self) -> dict:
        """The signatures of the SavedModel by name."""
        names = ["generate", "score"]
        names += [] if self.tokenizer is None else ["generate_text", "score_text"]
        return {name: getattr(self, name) for name in names}

    @property
    def longest_output(self) -> str:
        """The largest number of ids of an output, in words."""
        if self.max_length is not None:
            return f"{self.max_length:,} ids, with the prompt"
        return f"{DEFAULT_EXTRA_LENGTH} ids more than the longest prompt of a request"

    def warmup_requests(self):
        """Yields (signature, arguments) of the requests that warm up a server."""
        length = min(8, self.max_length or self._num_positions)
        ids = tf.fill([1, length], self.vocab_size - 1)
        yield "score", {"ids": ids}
        if self.settings.sampler != "random":
            yield "generate", {"prompts": ids}

    def _generate(self, prompts, seed=None):
        if self.max_length is None:
            prompts = self._checked(prompts, self._num_positions, _POSITIONS)
        else:
            prompts = self._checked(prompts, self.max_length, "max_length of this export")
        found = self._search(_checked_ends(prompts), seed)
        return {name: value[:, 0] for name, value in found._asdict().items()}

    def _score(self, ids):
        ids = self._checked(ids, self._num_positions, _POSITIONS)
        return score_tokens(self._logits(ids), ids)._asdict()

    def _generate_text(self, text, seed=None):
        prompts = encode(self.tokenizer, text)[:, :-1].to_tensor(PAD_ID)
        found = self._generate(prompts, seed)
        return {"texts": self.tokenizer.detokenize(found["ids"]), "scores": found["scores"]}

    def _score_text(self, text):
        ids = encode(self.tokenizer, text).to_tensor(PAD_ID)
        return self._score(ids) | {"tokens": self.tokenizer.pieces(ids)}

    def _search(self, prompts, seed):
        batch, length = tf.unstack(tf.shape(prompts))
        max_length, sampler = self.max_length, self._sampler
        if max_length is None:
            max_length = tf.minimum(length + DEFAULT_EXTRA_LENGTH, self._num_positions)
        uniform = None
        if seed is not None:
            uniform = tf.random.stateless_uniform([batch, 1, max_length], [seed, 0])
        state, step = self._start_search(prompts, max_length, sampler.num_hypotheses)
        limits = tf.fill([batch], max_length)
        return sampler.search(step, state, batch, max_length, uniform, prompts, limits)

    def _checked(self, ids, most, limit):
        """Returns ids `[B, T]`, with control dependencies on checks of their values.

        `most` is the largest T, and `limit` the name of this limit.
        """
        ids = tf.ensure_shape(ids, [None, None])
        length = tf.shape(ids)[1]
        message = ["Expected at most ", most, f" ids, the {limit}. Received: ", length]
        return checked(ids, [check_ids(ids, self.vocab_size), (length <= most, message)])


def _checked_ends(prompts):
    """Returns prompts, with a control dependency on a check that nothing follows their ends."""
    is_last = (prompts[:, :-1] == PAD_ID) | (prompts[:, :-1] == EOS_ID)
    is_wrong = tf.reduce_any(is_last & (prompts[:, 1:] != PAD_ID), axis=1)
    row = tf.argmax(tf.concat([is_wrong, [True]], 0))  # The first one, if there is one.
    message = ["Expected prompts without ids after padding (0) or after 1. Received: ids after "]
    check = ~tf.reduce_any(is_wrong), [*message, "them in prompt ", row]
    return checked(prompts, [check])


def _ids(name):
    return tf.TensorSpec([None, None], tf.int32, name=name)


def make_sampler(settings: GenerationSettings, vocab_size: int) -> Sampler:
    """Returns the sampler of the settings, for `generate`."""
    if settings.sampler == "greedy":
        return GreedySampler()
    if settings.sampler == "beam":
        return BeamSampler(
            settings.beam_size, settings.alpha, early_stopping=settings.early_stopping
        )
    top_k = settings.top_k or vocab_size
    # The sum of float32 probabilities may reach 1 before the least likely ids.
    if settings.top_p == 1:
        return TopKSampler(top_k, settings.temperature)
    return TopPSampler(settings.top_p, top_k, settings.temperature)


def _check_max_length(max_length, num_positions):
    """Raises ValueError if outputs may have more ids than the model has learned positions."""
    if max_length is not None and max_length > num_positions:
        raise ValueError(
            f"Expected max_length of at most {num_positions}, the model's number of learned "
            f"positions. Received: {max_length}. Use --max_length={num_positions} or less."
        )
