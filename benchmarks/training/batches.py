"""Batches of ids on which all systems of the training benchmark train."""

from pathlib import Path

import numpy as np
from absl import app, flags

from examples.synthetic_corpus import generate
from trainer.data.batching import training_batches
from trainer.data.corpus import PairCorpus
from trainer.data.encoding import encode_pairs
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.data.text_files import read_text


def define_flags():
    """Defines the flags of `batches_from_flags`."""
    flags.DEFINE_integer(
        "vocab_size",
        8000,
        "Size of the SentencePiece vocabulary, which is trained on the training text.",
        lower_bound=4,
    )
    flags.DEFINE_string(
        "train_source",
        "",
        "Source sentences, one per line; may be .gz. Default: the synthetic corpus.",
    )
    flags.DEFINE_string("train_target", "", "Translations of --train_source.")
    flags.DEFINE_integer(
        "batch_tokens",
        4096,
        "Tokens per batch on the longer side, including padding.",
        lower_bound=1,
    )
    flags.DEFINE_integer("max_length", 256, "Maximum sentence length in tokens.", lower_bound=2)


def batches_from_flags(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the result of `make_batches` for the values of the flags.

    Raises:
        app.UsageError: if only one of the two text files is given, or if `make_batches` raises a
            ValueError.
    """
    f = flags.FLAGS
    if bool(f.train_source) != bool(f.train_target):
        missing = "train_target" if f.train_source else "train_source"
        raise app.UsageError(
            f"Pass both --train_source and --train_target, or neither. Missing: --{missing}."
        )
    try:
        return make_batches(
            (f.train_source, f.train_target), f.vocab_size, f.batch_tokens, f.max_length, count
        )
    except ValueError as error:
        raise app.UsageError(str(error)) from error


def make_batches(texts: tuple[str, str], vocab_size, batch_tokens, max_length, count):
    """Returns the first batches of a training run: padded ids `([B, S], [B, T])`.

    Args:
        texts: paths of source and target sentences, as in `read_text`. ("", "") selects the
            synthetic corpus.
        vocab_size: size of the joint vocabulary, which is trained on the texts.
        batch_tokens: maximum tokens per batch on the longer side, including padding.
        max_length: maximum sentence length in tokens.
        count: number of batches.

    Raises:
        ValueError: if the files can't be read, differ in their number of lines, or are too small
            for the vocabulary.
    """
    corpus = read_text(*texts) if any(texts) else PairCorpus(tuple(generate("train")))
    tokenizer = SentencePieceTokenizer.train(corpus.sentences(), vocab_size)
    dataset = training_batches(encode_pairs(corpus, tokenizer), batch_tokens, max_length, seed=1)
    return [(ids["inputs"].numpy(), ids["targets"].numpy()) for ids in dataset.take(count)]


def write_batches(path: Path, batches) -> str:
    """Writes batches as arrays `inputs_0`, `targets_0`, `inputs_1`, ... Returns the path."""
    arrays = {f"inputs_{i}": inputs for i, (inputs, _) in enumerate(batches)}
    arrays |= {f"targets_{i}": targets for i, (_, targets) in enumerate(batches)}
    np.savez(path, **arrays)
    return str(path)


def count_tokens(batches) -> dict[str, int]:
    """Returns the number of ids other than padding: `{"source": ..., "target": ...}`."""
    return {
        side: sum(np.count_nonzero(batch[i]) for batch in batches)
        for i, side in enumerate(("source", "target"))
    }
