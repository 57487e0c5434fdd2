"""Preparation of a run: vocabulary, architecture and encoded corpora."""

import dataclasses
import math

import keras
from absl import logging

from t2t_relpos.models import TransformerConfig
from trainer.config import RunConfig
from trainer.config_checks import ARCHITECTURE_SETTINGS, RELATIVE_SETTINGS
from trainer.data.buckets import report_lengths
from trainer.data.encoding import encode_pairs
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.data.text_files import read_text
from trainer.data.tfds_sets import MissingSplitError, read_tfds
from trainer.model_dir import ModelDirectory


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
        if self.parent is None and directory.vocabulary_file().is_file():
            self._use_vocabulary_file(config.vocab_size)
        if directory.is_configured:
            self._check_recorded()
        train = self._corpus("train")
        self.dev_corpus = self._corpus("dev")
        if self.config.computes_dev_bleu and self.dev_corpus is None:
            raise ValueError(
                "Expected a dev set with dev_bleu, keep_best or early_stopping. Received: none. "
                "Give --dev_source and --dev_target."
            )
        self.tokenizer = self._load_tokenizer() or self._train_tokenizer(train)
        self.architecture = self._configure()
        self.train_pairs = self._encode("train", train)
        self.dev_pairs = self._encode("dev", self.dev_corpus)

    def describe(self, model: keras.Model) -> str:
        """Returns the settings, counts of training pairs and number of parameters as text."""
        given = {k: value for k, value in self.config.to_dict().items() if value is not None}
        settings = [f"  {name} = {value}" for name, value in given.items()]
        lengths = report_lengths(self.train_pairs, self.config.max_length)
        parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
        lines = ["Settings:", *settings, f"Training data: {lengths}", f"Parameters: {parameters:,}"]
        if self.config.jit_compile:
            lines.append(
                f"XLA: at most {lengths.buckets} programs to compile, one per length bucket."
            )
        return "\n".join(lines)

    def _use_vocabulary_file(self, requested_size):
        file = self.directory.vocabulary_file()
        size = SentencePieceTokenizer.from_file(file).vocab_size
        if requested_size not in (None, size):
            raise ValueError(
                f"Expected a model directory created with a vocabulary of {requested_size} pieces. "
                f"Received: {file}, which has {size}. Leave --vocab_size out to use it, or give "
                "another --model_dir."
            )
        self.config = dataclasses.replace(self.config, vocab_size=size)

    def _check_recorded(self):
        recorded, current = self.directory.read_run(), self.config.to_dict()
        # `_configure` compares the architecture, including the defaults of the preset.
        names = (recorded.keys() & self.config.fixed_on_resume()) - set(ARCHITECTURE_SETTINGS)
        fixed_recorded, fixed_current = (
            {name: settings[name] for name in self.config.fixed_on_resume() if name in names}
            for settings in (recorded, current)
        )
        self.directory.check_same(fixed_recorded, fixed_current, "settings")
        for name in ("train_source", "train_target"):
            if recorded.get(name, current[name]) != current[name]:
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

    def _load_tokenizer(self):
        if self.directory.is_configured:
            return self.directory.load_tokenizer()
        if self.parent is not None:
            return self._inherit_tokenizer()
        file = self.directory.vocabulary_file()
        return SentencePieceTokenizer.from_file(file) if file.is_file() else None

    def _inherit_tokenizer(self):
        tokenizer = self.parent.load_tokenizer()
        if self.config.vocab_size not in (None, tokenizer.vocab_size):
            raise ValueError(
                f"Expected the vocab_size of {self.parent.path}, {tokenizer.vocab_size}. "
                f"Received: {self.config.vocab_size}. Leave --vocab_size out."
            )
        tokenizer.save(self.directory.vocabulary_file(self.parent.tokenizer_kind))
        return tokenizer

    def _train_tokenizer(self, corpus):
        print(f"Training a vocabulary of {self.config.vocab_size} pieces.", flush=True)
        tokenizer = SentencePieceTokenizer.train(corpus.sentences(), self.config.vocab_size)
        tokenizer.save(self.directory.vocabulary_file())
        return tokenizer

    def _configure(self):
        settings = self.config.architecture_overrides()
        if self.parent is None:
            architecture = TransformerConfig.from_preset(
                self.config.preset, vocab_size=self.tokenizer.vocab_size, **settings
            )
        else:
            architecture = TransformerConfig.from_dict(
                self.parent.read_config()["architecture"] | settings
            )
        for name in RELATIVE_SETTINGS:
            if name in settings and not architecture.relative:
                raise ValueError(
                    f"Expected {name} only with relative positions. Received: {settings[name]} "
                    f"with the position {architecture.position}. Leave it out."
                )
        if self.directory.is_configured:
            recorded = self.directory.read_config()["architecture"]
            self.directory.check_same(recorded, architecture.to_dict(), "configuration")
        else:
            kind = "sentencepiece" if self.parent is None else self.parent.tokenizer_kind
            self.directory.write_config(architecture.to_dict(), kind)
        return architecture

    def _encode(self, split, corpus):
        return corpus and encode_pairs(
            corpus, self.tokenizer, cache_dir=self.directory.path / "ids" / split
        )
