"""Where an experiment's sentences come from, as flags of `trainer.train` and `trainer.evaluate` and as pairs of text."""

import dataclasses
from pathlib import Path

from trainer.data import corpora
from trainer.data.corpus import Corpus


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Training, dev and test sets.

    Args:
        data: a folder of text files `SPLIT.LANGUAGE` or `SPLIT.LANGUAGE.gz`; or "synthetic", or the name of a set of TensorFlow
            Datasets.
        data_dir: where TensorFlow Datasets keeps its data; None for its own place.
        direction: source and target language, such as "en-de".
        train: name of the training split of a folder.
        dev: name of the split that is for choices.
        tests: names of the splits that are translated once.

    Raises:
        ValueError: for a direction that is none, or a folder without such files.
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
            raise ValueError(
                f"Expected a direction such as en-de. Received: {self.direction!r}. Correct --direction."
            )
        if self.in_files:
            if self.data_dir is not None:
                raise ValueError(
                    f"Expected --data_dir only with a set of TensorFlow Datasets. Received: {self.data_dir} with the folder {self.data}. "
                    "Leave it out."
                )
            for split in self.splits:
                self._files(split)
        elif (self.train, self.dev) != ("train", "dev"):
            raise ValueError(
                f"Expected --train and --dev only with a folder of text files. Received: {self.train} and {self.dev} with "
                f"--data={self.data}. Leave them out."
            )

    @property
    def in_files(self) -> bool:
        """Whether the sentences are in text files."""
        return self.data != "synthetic" and Path(self.data).is_dir()

    @property
    def splits(self) -> tuple[str, ...]:
        """All of them, training first."""
        return (self.train, self.dev, *self.tests)

    def training_flags(self) -> dict[str, str]:
        """What tells `trainer.train` where they are."""
        if not self.in_files:
            return self._named()
        names = "train_source", "train_target", "dev_source", "dev_target"
        return dict(zip(names, (*self._files(self.train), *self._files(self.dev))))

    def evaluation_flags(self, split: str) -> dict[str, str]:
        """What tells `trainer.evaluate` where a split is."""
        if not self.in_files:
            return self._named() | {"split": split}
        return dict(zip(("source", "target"), self._files(split)))

    def corpus(self, split: str) -> Corpus:
        """The pairs of a split."""
        if not self.in_files:
            return corpora.open_corpus(
                self.data, split, direction=self.direction, data_dir=self.data_dir
            )
        return corpora.read_text(*self._files(split))

    def _named(self):
        given = {"data": self.data, "direction": self.direction, "data_dir": self.data_dir}
        return {name: value for name, value in given.items() if value is not None}

    def _files(self, split):
        return tuple(str(self._file(split, language)) for language in self.direction.split("-"))

    def _file(self, split, language):
        plain = Path(self.data) / f"{split}.{language}"
        for file in (plain, plain.with_name(plain.name + ".gz")):
            if file.is_file():
                return file.absolute()
        raise ValueError(
            f"Expected {plain} or {plain.name}.gz. Received: a folder with neither. Name its splits with --train, --dev and --test."
        )
