"""Access to corpora by name: text files or translation sets of TensorFlow Datasets."""

from trainer.data.corpus import Corpus
from trainer.data.text_files import read_text
from trainer.data.tfds_sets import read_tfds


def open_corpus(
    data: str,
    split: str,
    *,
    source: str | None = None,
    target: str | None = None,
    direction: str | None = None,
    data_dir: str | None = None,
) -> Corpus:
    """Returns the sentence pairs of a split.

    Args:
        data: "files" for text files, or the name of a translation set of TensorFlow Datasets, such
            as "wmt14_translate/de-en".
        split: "train", "dev" or "test"; ignored with "files".
        source: with "files", paths of the source sentences: see `read_text`.
        target: with "files", paths of their translations.
        direction: source and target language of a set; "en-de" by default.
        data_dir: data folder of TensorFlow Datasets: see `read_tfds`.

    Raises:
        ValueError: if the data can't be read: see `read_text` and `read_tfds`.
    """
    if data == "files":
        return read_text(source, target)
    if data == "synthetic":
        raise ValueError(
            "Expected 'files' or the name of a TensorFlow Datasets set as --data. Received: "
            "'synthetic'. Write the synthetic corpus as text files first: "
            "python -m examples.synthetic_corpus FOLDER"
        )
    return read_tfds(data, split, direction or "en-de", data_dir)
