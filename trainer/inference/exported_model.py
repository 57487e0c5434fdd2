"""An exported model as a function of batches, with a request's options."""

import functools
import re
from collections.abc import Callable, Sequence

import tensorflow as tf

from trainer.serving import saved_models
from trainer.serving.translator import Alignment, Translation

# The score of a place in a list of translations that is left empty, since there were not as many.
ABSENT = -1e7


class NBestTranslator:
    """A translation graph as a function of lists of sentences, which gives every sentence its list
    of translations.

    Args:
        call: takes `text`, a string tensor `[B]`, as a keyword and returns `translations` and
            `scores`, `[B, n]` or `[B]`, and `truncated` `[B]`.
        score: takes `text` and `translation`, string `[B]`, and returns what the SavedModel's
            signature `score` does; where it is given, translations are aligned.
        fingerprint: what tells the model from any other.
        owner: the module of `call` and `score`, kept alive as long as the translator.
    """

    def __init__(
        self,
        call: Callable[..., dict],
        score: Callable[..., dict] | None = None,
        fingerprint: str = "",
        owner=None,
    ):
        self._call = call
        self._score = score
        self._owner = owner
        self.fingerprint = fingerprint

    def __call__(self, sentences: Sequence[bytes]) -> list[list[Translation]]:
        """Translates one batch, in order; of each sentence the best first, and as many as there
        are, if not n.

        Raises:
            ValueError: for options that the graph refuses.
        """
        text = tf.constant(list(sentences), tf.string)
        try:
            answer = self._call(text=text)
            # The only translation of a sentence has no axis.
            texts, scores = (
                answer[name].numpy().reshape(len(sentences), -1)
                for name in ("translations", "scores")
            )
            alignments = iter(
                self._align([one for one in sentences for _ in texts[0]], texts.ravel())
            )
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(plain_message(error)) from error
        rows = zip(texts.tolist(), scores.tolist(), answer["truncated"].numpy().tolist())
        found = [
            [Translation(*each, cut, next(alignments)) for each in zip(texts, scores)]
            for texts, scores, cut in rows
        ]
        return [
            [best, *(other for other in others if other.score > ABSENT)] for best, *others in found
        ]

    def _align(self, text, translations):
        if self._score is None:
            return [None] * len(translations)
        scored = self._score(
            text=tf.constant(text, tf.string), translation=tf.constant(translations, tf.string)
        )
        names = ("source_tokens", "source_lengths", "tokens", "lengths", "alignments")
        return [alignment(*row) for row in zip(*(scored[name].numpy() for name in names))]


def alignment(source_tokens, source_length: int, tokens, length: int, weights) -> Alignment:
    """What a sentence's translation attends to, both without the end of the sentence.

    That end takes what has no valid key in particular; it is not among what a token is linked to,
    so that each has its link.

    Args:
        source_tokens, tokens: subwords `[S]` and `[T]`.
        source_length, length: how many of them there are, with EOS.
        weights: attention `[T, S]`.

    Example:
        >>> import numpy as np
        >>> weights = np.array([[0.3, 0.1, 0.6], [0.1, 0.7, 0.2], [0.0, 0.0, 1.0]])
        >>> alignment([b"a", b"dog", b""], 3, [b"ein", b"Hund", b""], 3, weights)
        Alignment(source_tokens=[b'a', b'dog'], target_tokens=[b'ein', b'Hund'], sources=[0, 1])
    """
    rows, columns = max(length - 1, 0), max(source_length - 1, 0)
    sources = weights[:rows, :columns].argmax(axis=1).tolist() if columns else []
    return Alignment(list(source_tokens[:columns]), list(tokens[:rows]), sources)


def load(
    path: str,
    beam_size: int | None = None,
    alpha: float | None = None,
    max_length: int | None = None,
    nbest: int | None = None,
    aligned: bool = False,
) -> NBestTranslator:
    """Loads an exported model.

    Args:
        path: saved_models/NAME (its latest version) or saved_models/NAME/VERSION.
        beam_size, alpha, max_length: as for the signature `translate`; as exported where omitted.
        nbest: translations per sentence; one where omitted.
        aligned: whether translations come with alignments.

    Raises:
        ValueError: if there is no SavedModel that translates, it was exported before it took
            these options, or they are beyond what it takes.
    """
    directory = saved_models.find(path)
    # The names of the signatures' arguments.
    chosen = {
        "beam_size": beam_size,
        "alpha": alpha,
        "max_length": max_length,
        "num_results": nbest,
    }
    chosen = {name: value for name, value in chosen.items() if value is not None}
    translate = saved_models.load(directory)
    call, score = translate.call, None
    if chosen:
        _check_signature(translate.owner, "translate", chosen, directory)
        options = translate.owner.defaults()
        _check_limits(chosen, options)
        call = functools.partial(translate.owner.translate, **(options | chosen))
    if aligned:
        _check_signature(translate.owner, "score", ["translation"], directory)
        score = translate.owner.score
    return NBestTranslator(call, score, _fingerprint(directory), translate.owner)


def _check_signature(loaded, name, arguments, directory):
    signature = loaded.signatures.get(name)
    known = signature.structured_input_signature[1] if signature is not None else ()
    missing = [argument for argument in arguments if argument not in known]
    if missing:
        raise ValueError(
            f"Expected a SavedModel whose signature {name} takes {', '.join(missing)}. Received: "
            f"{directory}, which was exported "
            "before there was such a thing. Export the model again with `python -m trainer.export`."
        )


def _check_limits(chosen, exported):
    beam_size = chosen.get("beam_size", int(exported["beam_size"]))
    if chosen.get("num_results", 1) > beam_size:
        raise ValueError(
            f"Expected --nbest to be at most the beam size, {beam_size}. Received: "
            f"{chosen['num_results']}. Give a larger --beam_size."
        )
    longest = int(exported["max_length"])
    if chosen.get("max_length", 1) > longest:
        raise ValueError(
            f"Expected --max_length to be at most {longest}, as exported. Received: "
            f"{chosen['max_length']}."
        )


def _fingerprint(directory):
    """The same for every copy of an export, another for every other one."""
    try:
        return tf.saved_model.experimental.read_fingerprint(str(directory)).singleprint()
    except (FileNotFoundError, RuntimeError, ValueError):
        # An export without fingerprint.pb, which is a file that TF Serving does not need.
        return str(directory.resolve())


def plain_message(error: tf.errors.OpError) -> str:
    """What a graph's assertion says, in one line, without the name of its node.

    Example:
        >>> text = "assertion failed: [Expected a beam_size of at least 1.] [Received:] [0]"
        >>> text += "\\n\\t [[{{node Assert}}]]"
        >>> plain_message(tf.errors.InvalidArgumentError(None, None, text))
        'Expected a beam_size of at least 1. Received: 0'
    """
    failed = re.search(r"assertion failed: (.*)", error.message)
    if failed is None:
        return error.message.strip().splitlines()[-1]
    return " ".join(re.findall(r"\[([^\[\]]*)\]", failed.group(1)))
