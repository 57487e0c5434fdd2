"""Batches of ids on which all systems of the training benchmark train."""

from pathlib import Path

import numpy as np

from examples.synthetic_corpus import generate
from trainer.data.batching import training_batches
from trainer.data.corpus import PairCorpus
from trainer.data.encoding import encode_pairs
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.data.text_files import read_text


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


def count_tokens(batches) -> int:
    """Returns the number of source and target ids other than padding."""
    return sum(np.count_nonzero(ids) for batch in batches for ids in batch)
