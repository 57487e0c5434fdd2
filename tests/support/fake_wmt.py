"""WMT 2014 in TensorFlow Datasets, prepared from archives with sentences of the synthetic corpus.

The archives have the file names and formats of WMT. TensorFlow Datasets' own builder reads them.
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
    """Returns the (English, German) pairs that replace a part of WMT's data.

    All parts of the training data have the same pairs.
    """
    split, size = _PARTS.get(part, ("train", 499))
    return generate(split, size)


def prepare(data_dir: str | os.PathLike, archives: str | os.PathLike, languages: str = "de-en"):
    """Prepares wmt14_translate in `data_dir` with TensorFlow Datasets.

    Args:
        data_dir: data folder of TensorFlow Datasets.
        archives: folder to write the content of the archives to.
        languages: the configuration. The language before the "-" always has German sentences.
    """
    builder = tfds.builder(f"wmt14_translate/{languages}", data_dir=data_dir)
    language = languages.split("-")[0]
    for part in sum(builder.subsets.values(), []):
        _write(Path(archives), wmt.DATASET_MAP[part], language)

    def unpack(manager, urls):
        """Replaces the download: returns the folder of the archives for every URL."""
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
