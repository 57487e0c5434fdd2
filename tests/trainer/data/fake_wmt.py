"""WMT 2014 as TensorFlow Datasets prepares it, from archives that hold sentences of the synthetic
corpus.

Sentences are what is fake: files have the names and formats of WMT's archives, and TensorFlow
Datasets' own program reads them.
"""

import gzip
import os
from pathlib import Path
from unittest import mock

import tensorflow_datasets as tfds
from tensorflow_datasets.translate import wmt

from examples.synthetic_corpus import generate

_PARTS = {"newstest2013": ("dev", 29), "newstest2014": ("test", 31)}


def sentence_pairs(part: str) -> list[tuple[str, str]]:
    """The pairs of English and German sentences that are in for a part of WMT's data; all for
    training are equal.
    """
    split, size = _PARTS.get(part, ("train", 499))
    return generate(split, size)


def prepare(data_dir: str | os.PathLike, archives: str | os.PathLike, languages: str = "de-en"):
    """Has TensorFlow Datasets prepare wmt14_translate in `data_dir`.

    Args:
        data_dir: as `tfds.load` takes it.
        archives: where the files that the archives would hold are written.
        languages: the configuration; the language before the "-" has German sentences whatever it
            is.
    """
    builder = tfds.builder(f"wmt14_translate/{languages}", data_dir=data_dir)
    language = languages.split("-")[0]
    for part in sum(builder.subsets.values(), []):
        _write(Path(archives), wmt.DATASET_MAP[part], language)

    def unpack(manager, urls):
        """In place of the download: the root of all archives for everything that is requested."""
        if isinstance(urls, dict):
            return {name: unpack(manager, value) for name, value in urls.items()}
        return [str(archives) for _ in urls] if isinstance(urls, list) else str(archives)

    with mock.patch.object(tfds.download.DownloadManager, "download_and_extract", unpack):
        builder.download_and_prepare()


def _write(folder, part, language):
    pairs = sentence_pairs(part.name)
    for path in part.get_path(language):
        suffixes = path.removesuffix(".gz").removesuffix(".sgm").split(".")
        is_english = suffixes[-1] == "en"
        lines = [pair[0] if is_english else pair[1] for pair in pairs]
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".sgm"):
            lines = [
                f'<seg id="{number}">{line}</seg>' for number, line in enumerate(lines, start=1)
            ]
        with gzip.open(file, "wt") if file.suffix == ".gz" else open(file, "w") as text:
            text.write("\n".join(lines))
