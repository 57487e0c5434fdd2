"""Measures how much scores in int8 differ from float32: of CTranslate2, and of a simulation.

CTranslate2 and Keras round the same way: weights by output, inputs by token. Keras adds exactly.
"""

import itertools
import os
import warnings
from typing import NamedTuple

import ctranslate2
import numpy as np
import tensorflow as tf

from ..data.text_files import read_text
from ..data.tokenizer import EOS_ID, PAD_ID
from ..model_dir import TRANSLATION, ModelDirectory

# Number of pairs, and the largest number of ids of a side.
_NUM_PAIRS, _MAX_LENGTH = 16, 64


class Int8Scores(NamedTuple):
    """Mean absolute differences from float32 of the log-probabilities of tokens.

    Attributes:
        texts: number and kind of the sentences.
        measured: difference of CTranslate2 on this machine.
        simulated: difference of the Keras model with `quantize("int8")`.
    """

    texts: str
    measured: float
    simulated: float


def compare(model_dir: str | os.PathLike, exported: str | os.PathLike) -> Int8Scores:
    """Returns the differences of a model that was exported to CTranslate2 in int8.

    Args:
        model_dir: the model directory. The sentences are the first of the dev set of its run. If
            the run has no text files, they are random ids.
        exported: the exported model.
    """
    directory = ModelDirectory.open(model_dir, TRANSLATION)
    model = directory.load_model()
    sizes = {"source": model.config.num_source_ids, "target": model.config.vocab_size}
    length = min(_MAX_LENGTH, model.config.num_positions or _MAX_LENGTH)
    kind, sides = "dev sentences", _dev_ids(directory, length)
    if not sides:
        kind, sides = "random sentences", _random_ids([*sizes.values()], length // 4)
    exact = _token_scores(model, *sides)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        model.quantize("int8")
    simulated = _token_scores(model, *sides)
    names = [directory.token_names(size, side)[0] for side, size in sizes.items()]
    tokens = [[[of[i] for i in ids[:-1]] for ids in side] for of, side in zip(names, sides)]
    results = ctranslate2.Translator(str(exported), device="cpu").score_batch(*tokens)
    measured = np.concatenate([result.log_probs for result in results])
    differences = (float(np.abs(found - exact).mean()) for found in (measured, simulated))
    return Int8Scores(f"{len(sides[0])} {kind}", *differences)


def _dev_ids(directory, length):
    """Returns the ids of source and target sentences of the dev set, or an empty list."""
    files = map(directory.read_run().get, ("dev_source", "dev_target"))
    try:
        pairs = (pair for pair in read_text(*files) if all(map(str.strip, pair)))
        sides = [*zip(*itertools.islice(pairs, _NUM_PAIRS))]
    except (ValueError, OSError):  # The run had no such files, or they are gone.
        return []
    ids = (of.tokenize([*side]).to_list() for of, side in zip(directory.load_tokenizers(), sides))
    return [[[*row[:-1][: length - 1], EOS_ID] for row in side] for side in ids]


def _random_ids(sizes, length):
    rng = np.random.default_rng(0)
    ids = (rng.integers(EOS_ID + 1, size, (_NUM_PAIRS, max(length, 1))).tolist() for size in sizes)
    return [[[*row, EOS_ID] for row in side] for side in ids]


def _token_scores(model, source, target):
    """Returns the log-probabilities of all target ids. As in CTranslate2, padding has none."""
    source, target = (tf.ragged.constant(ids).to_tensor(PAD_ID).numpy() for ids in (source, target))
    logits = np.array(model({"inputs": source, "targets": target}))
    logits[..., PAD_ID] = -np.inf
    scores = np.take_along_axis(tf.nn.log_softmax(logits).numpy(), target[..., None], axis=-1)
    return scores[..., 0][target != PAD_ID]
