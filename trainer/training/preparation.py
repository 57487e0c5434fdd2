"""Preparation of a run: vocabulary, architecture and encoded corpora."""

import dataclasses
import math

import keras
from absl import logging

from t2t_relpos.models import TransformerConfig
from trainer.config import TEXT_FILES, RunConfig
from trainer.config_checks import ARCHITECTURE_SETTINGS, RELATIVE_SETTINGS
from trainer.data.buckets import report_lengths
from trainer.data.encoding import encode_pairs
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.data.text_files import read_text
from trainer.data.tfds_sets import MissingSplitError, read_tfds
from trainer.model_dir import ModelDirectory
from trainer.training.checkpoints import Checkpoints


class Preparation:
    """The vocabulary, architecture and data of a run. Missing files are written.

    Args:
        config: the settings. They are resolved here.
        directory: a writable model directory.

    Attributes:
        config: the resolved settings, with the actual size of the vocabulary.
        parent: the model directory with the initial weights, or None.
        directory: the model directory.
        tokenizer: the model's tokenizer.
        architecture: a `TransformerConfig`.
        train_pairs: the training corpus as `EncodedPairs`.
        dev_corpus: the dev set, or None.
        dev_pairs: the dev set as `EncodedPairs`, or None.

    Raises:
        ValueError: if settings, data or the model directory are invalid.
    """

    def __init__(self, config: RunConfig, directory: ModelDirectory):
        self.config = config.resolve()
        self.parent = ModelDirectory.open(config.init_from) if config.init_from else None
        self.directory = directory
        self.tokenizer = self._load_tokenizer(config.vocab_size)
        self._vocabulary = "new" if self.tokenizer is None else "existing"
        if self.tokenizer is not None and self.parent is None:
            self.config = dataclasses.replace(self.config, vocab_size=self.tokenizer.vocab_size)
        if directory.is_configured:
            self._check_recorded()
        # Report invalid settings before the text is read and the vocabulary is trained.
        self.architecture = self._make_architecture()
        train = self._corpus("train")
        self.dev_corpus = self._corpus("dev")
        needs_dev = self.config.computes_dev_bleu or config.evaluate_every is not None
        if needs_dev and self.dev_corpus is None:
            raise ValueError(
                "Expected a dev set with evaluate_every, dev_bleu, keep_best or early_stopping. "
                "Received: none. Give --dev_source and --dev_target, or leave these flags out."
            )
        if self.tokenizer is None:
            size = self.config.vocab_size
            print(f"Training a vocabulary of {size} pieces.", flush=True)
            self.tokenizer = SentencePieceTokenizer.train(train.sentences(), size)
        self._write_config()
        self.train_pairs = self._encode("train", train)
        self.dev_pairs = self._encode("dev", self.dev_corpus)

    def describe(self, model: keras.Model) -> str:
        """Returns the settings, counts of training pairs and number of parameters as text."""
        given = {k: value for k, value in self.config.to_dict().items() if value is not None}
        settings = [f"  {name} = {value}" for name, value in given.items()]
        lengths = report_lengths(self.train_pairs, self.config.max_length)
        parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
        vocabulary = f"Vocabulary: {self.tokenizer.vocab_size} pieces ({self._vocabulary})"
        lines = ["Settings:", *settings, vocabulary, f"Training data: {lengths}"]
        lines.append(f"Parameters: {parameters:,}")
        if self.config.jit_compile:
            lines.append(f"XLA: compiles at most {lengths.buckets} programs, one for each bucket.")
        return "\n".join(lines)

    def _check_recorded(self):
        directory = self.directory
        if directory.model_file.exists() and not Checkpoints(directory.checkpoints).steps():
            raise ValueError(
                "Expected a model directory with a checkpoint to resume from. Received: "
                f"{directory.path}, which has a model and no checkpoint. Start from the model: "
                f"give --init_from={directory.path} and another --model_dir."
            )
        if self.parent is not None:
            vocabularies = (d.read_config()["tokenizer"] for d in (directory, self.parent))
            directory.check_same(*vocabularies, "vocabulary")
        recorded, current = directory.read_run(), self.config.to_dict()
        # `_write_config` compares the architecture, including the defaults of the preset.
        names = [name for name in self.config.fixed_on_resume() if name in recorded]
        names = [name for name in names if name not in ARCHITECTURE_SETTINGS]
        fixed = ({name: run[name] for name in names} for run in (recorded, current))
        directory.check_same(*fixed, "settings")
        for name in TEXT_FILES:
            if recorded.get(name) not in (None, current[name]):
                logging.warning(
                    "Resuming with different data: %s was %s and is now %s",
                    name,
                    recorded[name],
                    current[name],
                )

    def _corpus(self, split):
        config = self.config
        if config.data == "files":
            source, target = (getattr(config, f"{split}_{side}") for side in ("source", "target"))
            return read_text(source, target) if source else None
        try:
            return read_tfds(config.data, split, config.direction, config.data_dir)
        except MissingSplitError as error:
            if split != "dev":
                raise
            logging.warning("Training without a dev set. %s", error)
            return None

    def _load_tokenizer(self, requested_size):
        """Returns the tokenizer of the directory or of its parent, or None if there is none."""
        file = self.directory.vocabulary_file()
        if self.directory.is_configured:
            tokenizer, origin = self.directory.load_tokenizer(), self.directory.path
        elif self.parent is not None:
            tokenizer, origin = self.parent.load_tokenizer(), self.parent.path
        elif file.is_file():
            tokenizer, origin = SentencePieceTokenizer.from_file(file), file
        else:
            return None
        size = tokenizer.vocab_size
        if requested_size not in (None, size):
            raise ValueError(
                f"Expected the vocab_size of {origin}, {size}. Received: {requested_size}. Leave "
                "--vocab_size out to use that vocabulary, or give another --model_dir."
            )
        return tokenizer

    def _make_architecture(self):
        """Returns the architecture. `_write_config` sets its `vocab_size` to the tokenizer's."""
        settings, longest = self.config.architecture_overrides(), self.config.max_length
        if self.parent is None:
            settings["vocab_size"] = self.config.vocab_size
            architecture = TransformerConfig.from_preset(self.config.preset, **settings)
        else:
            architecture = TransformerConfig.from_dict(
                self.parent.read_config()["architecture"] | settings
            )
        if architecture.position == "learned" and longest > architecture.max_length:
            if self.parent is not None:
                raise ValueError(
                    f"Expected max_length of at most {architecture.max_length}, the number of "
                    f"learned positions of {self.parent.path}. Received: {longest}. Give "
                    f"--max_length={architecture.max_length}."
                )
            architecture = dataclasses.replace(architecture, max_length=longest)
        for name in RELATIVE_SETTINGS:
            if name in settings and not architecture.relative:
                raise ValueError(
                    f"Expected {name} only with relative positions. Received: {settings[name]} "
                    f"with the position {architecture.position}. Leave it out."
                )
        return architecture

    def _write_config(self):
        size = self.tokenizer.vocab_size
        self.architecture = dataclasses.replace(self.architecture, vocab_size=size)
        architecture = self.architecture.to_dict()
        if self.directory.is_configured:
            recorded = self.directory.read_config()["architecture"]
            self.directory.check_same(recorded, architecture, "configuration")
        else:
            kind = "sentencepiece" if self.parent is None else self.parent.tokenizer_kind
            self.tokenizer.save(self.directory.vocabulary_file(kind))
            self.directory.write_config(architecture, kind)

    def _encode(self, split, corpus):
        return corpus and encode_pairs(
            corpus, self.tokenizer, cache_dir=self.directory.path / "ids" / split
        )
