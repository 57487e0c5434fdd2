"""The dataset of an experiment, as sentence pairs and as flags of the trainer's commands."""

import dataclasses
from pathlib import Path

from trainer.data.corpus import Corpus, read_tfds
from trainer.data.text_files import read_text


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Training, dev and test sets of one language pair.

    `data` is a folder of text files `SPLIT.LANGUAGE` or `SPLIT.LANGUAGE.gz`, whose splits the other
    fields name, or a TensorFlow Datasets dataset in `data_dir`. `direction` has the source and the
    target language.

    Raises:
        ValueError: if `direction` is malformed or files are missing.
    """

    data: str
    data_dir: str | None = None
    direction: str = "en-de"
    train: str = "train"
    dev: str = "dev"
    tests: tuple[str, ...] = ("test",)

    def __post_init__(self):
        languages = self.direction.split("-")
        if len(languages) != 2 or not all(languages):
            raise ValueError(f"--direction must look like en-de, got {self.direction!r}.")
        for split in (self.train, *self.eval_splits) if self._is_folder else ():
            self._files(split)

    @property
    def eval_splits(self) -> tuple[str, ...]:
        return (self.dev, *self.tests)

    def training_flags(self) -> dict[str, str]:
        """Returns the flags that select the training and dev sets in `trainer.train`."""
        if not self._is_folder:
            return self._dataset_flags()
        names = "train_source", "train_target", "dev_source", "dev_target"
        return dict(zip(names, (*self._files(self.train), *self._files(self.dev))))

    def evaluation_flags(self, split: str) -> dict[str, str]:
        """Returns the flags that select a split in `trainer.evaluate`."""
        if not self._is_folder:
            return self._dataset_flags() | {"split": split}
        return dict(zip(("source", "target"), self._files(split)))

    def open_corpus(self, split: str) -> Corpus:
        """Returns the sentence pairs of a split."""
        if self._is_folder:
            return read_text(*self._files(split))
        return read_tfds(self.data, split, self.direction, self.data_dir)

    @property
    def _is_folder(self):
        return Path(self.data).is_dir()

    def _dataset_flags(self):
        values = {"data": self.data, "direction": self.direction, "data_dir": self.data_dir}
        return {name: value for name, value in values.items() if value is not None}

    def _files(self, split):
        plain = [Path(self.data) / f"{split}.{language}" for language in self.direction.split("-")]
        files = [path if path.is_file() else path.with_name(f"{path.name}.gz") for path in plain]
        for path, file in zip(plain, files):
            if not file.is_file():
                raise ValueError(
                    f"Neither {path} nor {file.name} exists. "
                    "Select the splits with --train, --dev and --test."
                )
        return [str(file.absolute()) for file in files]
