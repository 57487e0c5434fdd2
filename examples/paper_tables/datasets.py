"""The dataset of an experiment, as sentence pairs and as flags of the trainer's commands."""

import dataclasses
from pathlib import Path

from trainer.data.corpus import Corpus, read_tfds
from trainer.data.text_files import read_text


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Training, dev and test sets of one language pair.

    Args:
        data: a folder of text files `SPLIT.LANGUAGE` or `SPLIT.LANGUAGE.gz`, or the
            name of a TensorFlow Datasets dataset.
        data_dir: directory of TensorFlow Datasets; None for its default.
        direction: source and target language, such as "en-de".
        train: name of the training split in a folder.
        dev: name of the dev split in a folder.
        tests: names of the test splits.

    Raises:
        ValueError: if `direction` is malformed, files are missing, or options contradict `data`.
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
        if self._is_folder and self.data_dir is not None:
            raise ValueError(
                f"--data_dir applies to TensorFlow Datasets only, got {self.data_dir} with the "
                f"folder {self.data}."
            )
        if not self._is_folder and (self.train, self.dev) != ("train", "dev"):
            raise ValueError(
                f"--train and --dev apply to folders of text files only, got {self.train} and "
                f"{self.dev} with --data={self.data}."
            )
        if self._is_folder:
            for split in (self.train, *self.eval_splits):
                self._files(split)

    @property
    def eval_splits(self) -> tuple[str, ...]:
        """The dev split and the test splits."""
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
        return tuple(str(self._file(split, language)) for language in self.direction.split("-"))

    def _file(self, split, language):
        plain = Path(self.data) / f"{split}.{language}"
        for file in (plain, plain.with_name(plain.name + ".gz")):
            if file.is_file():
                return file.absolute()
        raise ValueError(
            f"Neither {plain} nor {plain.name}.gz exists. "
            "Select the splits with --train, --dev and --test."
        )
