"""Corpora by name: text files, the embedded synthetic corpus, sets of TensorFlow Datasets."""

from trainer.data import synthetic
from trainer.data.corpus import Corpus, PairCorpus
from trainer.data.text_files import read_text
from trainer.data.tfds_sets import read_tfds

SYNTHETIC_DIRECTION = "en-de"


def open_corpus(
    data: str,
    split: str,
    *,
    source: str | None = None,
    target: str | None = None,
    direction: str | None = None,
    data_dir: str | None = None,
) -> Corpus:
    """The sentence pairs of a split.

    Args:
        data: "files" for text files, "synthetic" for the embedded corpus, or the name of a
            translation set of TensorFlow Datasets, such as "wmt14_translate/de-en".
        split: train, dev or test; test_longer too with "synthetic". Text files are what they are.
        source: with "files", paths of the source sentences: see `read_text`.
        target: with "files", paths of their translations.
        direction: source and target language where the data are not files; "en-de" by default.
        data_dir: where TensorFlow Datasets keeps its data; see `read_tfds`.

    Raises:
        ValueError: if the data can't be read as asked; see `read_text`, `read_synthetic` and
            `read_tfds`.

    Example:

    >>> source, target = next(iter(open_corpus("synthetic", "dev")))
    >>> target
    'Sie wird bald diese Frau einladen, aber sie wird die Frauen anrufen.'
    """
    if data == "files":
        return read_text(source, target)
    if data == "synthetic":
        return read_synthetic(split, direction or SYNTHETIC_DIRECTION)
    return read_tfds(data, split, direction or "en-de", data_dir)


def read_synthetic(split: str, direction: str = SYNTHETIC_DIRECTION) -> PairCorpus:
    """The embedded corpus: see `trainer.data.synthetic`.

    Raises:
        ValueError: for an unknown split, or a direction other than "en-de": German does not always
            decide the English.
    """
    if direction != SYNTHETIC_DIRECTION:
        raise ValueError(
            f"Expected the direction {SYNTHETIC_DIRECTION}, the only one of the synthetic corpus. "
            f"Received: {direction!r}. "
            "Leave it out, or train on text of your own."
        )
    return PairCorpus(tuple(synthetic.generate(split)))
