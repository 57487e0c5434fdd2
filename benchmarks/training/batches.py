"""The batches on which benchmarks/training.py trains every peer."""

from pathlib import Path

import numpy as np

from trainer.data.batching import training_batches
from trainer.data.corpora import read_synthetic
from trainer.data.encoding import encode_pairs
from trainer.data.text_files import read_text
from trainer.data.tokenizers import SentencePieceTokenizer


def make_batches(
    source: str, target: str, vocab_size: int, batch_tokens: int, max_length: int, count: int
):
    """The first batches of a training run, padded ids `([B, S], [B, T])`, of text files; of the embedded corpus where both are "".

    Args:
        source: paths of source sentences with commas between them.
        target: those of their translations.
        vocab_size: of the joint vocabulary, which is learned from both.
        batch_tokens: tokens of the longer side in a batch, padding included, at most.
        max_length: longest sentence in ids.
        count: how many batches.

    Raises:
        ValueError: for files that can't be read or don't belong together, and a vocabulary that they are too small for.
    """
    corpus = read_text(source, target) if source or target else read_synthetic("train")
    tokenizer = SentencePieceTokenizer.train(corpus.sentences(), vocab_size)
    dataset = training_batches(encode_pairs(corpus, tokenizer), batch_tokens, max_length, seed=1)
    return [(ids["inputs"].numpy(), ids["targets"].numpy()) for ids, *_ in dataset.take(count)]


def write_batches(path: Path, batches) -> str:
    """Writes them as `training_worker.py` reads them: arrays `inputs_0`, `targets_0`, …"""
    arrays = {f"inputs_{i}": inputs for i, (inputs, _) in enumerate(batches)}
    arrays |= {f"targets_{i}": targets for i, (_, targets) in enumerate(batches)}
    np.savez(path, **arrays)
    return str(path)


def count_tokens(batches) -> dict[str, int]:
    """Ids of both sides, without padding."""
    return {
        side: sum(np.count_nonzero(batch[i]) for batch in batches)
        for i, side in enumerate(("source", "target"))
    }
