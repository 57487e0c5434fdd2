"""A training run, from its settings to a trained model in a model directory."""

import dataclasses
import math

import keras
import tensorflow as tf
from absl import logging

from t2t_relpos.models import Transformer, TransformerConfig
from trainer.config import RunConfig
from trainer.data.batching import evaluation_batches, training_batches
from trainer.data.corpora import open_corpus
from trainer.data.encoding import encode_pairs
from trainer.data.lengths import report_lengths
from trainer.data.tokenizers import SentencePieceTokenizer
from trainer.model_dir import ModelDirectory
from trainer.training.callbacks import SaveModel
from trainer.training.checkpoints import Checkpoints
from trainer.training.schedules import NoamSchedule
from trainer.training.step_log import StepLog, TensorBoard, Terminal
from trainer.training.strategy import make_strategy
from trainer.training.training_model import TrainingModel


class TrainingRun:
    """Opens the data, the model directory and the devices of a run, and restores its last checkpoint.

    Args:
        config: the settings; what they leave open is resolved here.

    Attributes:
        config: the resolved settings.
        directory: the `ModelDirectory`.
        model: the `TrainingModel`.
        step: number of updates that it has made.

    Raises:
        ValueError: for everything that is wrong with the settings, the data or the model directory.
    """

    def __init__(self, config: RunConfig):
        self.config = config = config.resolve()
        self.parent = ModelDirectory.open(config.init_from) if config.init_from else None
        self.directory = ModelDirectory.create(config.model_dir)
        strategy = make_strategy(config.strategy, config.logical_devices)
        keras.utils.set_random_seed(config.seed)
        if config.deterministic:
            tf.config.experimental.enable_op_determinism()
        self.checkpoints = Checkpoints(self.directory.checkpoints, config.keep_checkpoints)
        if self.parent is None and self.directory.vocabulary_file().is_file():
            self._take_vocabulary(config.vocab_size)
        if self.directory.is_configured:
            self._check_recorded()
        train = self._corpus("train")
        self.tokenizer = self._load_tokenizer() or self._train_tokenizer(train)
        architecture = self._configure()
        self._pairs = self._encode("train", train)
        self._dev_pairs = self._encode("dev", self._corpus("dev"))
        with strategy.scope():
            self.model = self._make_model(architecture)
            self.step = self.checkpoints.restore_latest(self.model)
        if self.parent is not None and self.step == 0:
            self.model.transformer.set_weights(self.parent.load_model().get_weights())
        self.directory.write_run(self.config.to_dict())

    def _take_vocabulary(self, asked):
        """Checks that the vocabulary in the directory has the size asked for, and makes its size the setting."""
        file = self.directory.vocabulary_file()
        size = SentencePieceTokenizer.from_file(file).vocab_size
        if asked not in (None, size):
            raise ValueError(
                f"Expected a model directory made with a vocabulary of {asked} pieces. Received: {file}, which has {size}. "
                f"Leave --vocab_size out to use it, or give another --model_dir."
            )
        self.config = dataclasses.replace(self.config, vocab_size=size)

    def _check_recorded(self):
        recorded, asked = self.directory.read_run(), self.config.to_dict()
        names = [name for name in self.config.fixed() if name in recorded]
        self.directory.check_same(*({name: settings[name] for name in names} for settings in (recorded, asked)), "settings")
        for name in ("train_source", "train_target"):
            if recorded.get(name, asked[name]) != asked[name]:
                logging.warning("Going on with other data than before: %s was %s, is %s", name, recorded[name], asked[name])

    def _corpus(self, split):
        config = self.config
        if config.data != "files":
            return open_corpus(config.data, split, direction=config.direction)
        source, target = (getattr(config, f"{split}_{side}") for side in ("source", "target"))
        return open_corpus("files", split, source=source, target=target) if source else None

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
                f"Expected no other vocab_size than that of {self.parent.path}, {tokenizer.vocab_size}. "
                f"Received: {self.config.vocab_size}. Leave --vocab_size out."
            )
        tokenizer.save(self.directory.vocabulary_file(self.parent.tokenizer_kind))
        return tokenizer

    def _train_tokenizer(self, corpus):
        print(f"Learning a vocabulary of {self.config.vocab_size} pieces.", flush=True)
        tokenizer = SentencePieceTokenizer.train(corpus.sentences(), self.config.vocab_size)
        tokenizer.save(self.directory.vocabulary_file())
        return tokenizer

    def _configure(self):
        settings = self.config.architecture()
        if self.parent is None:
            architecture = TransformerConfig.from_preset(self.config.preset, vocab_size=self.tokenizer.vocab_size, **settings)
        else:
            architecture = TransformerConfig.from_dict(self.parent.read_config()["architecture"] | settings)
        if "max_relative_position" in settings and not architecture.relative:
            raise ValueError(
                f"Expected max_relative_position only with a preset that has relative positions. "
                f"Received: {settings['max_relative_position']} with {self.config.preset or self.parent.path}. Leave it out."
            )
        if self.directory.is_configured:
            self.directory.check_architecture(architecture.to_dict())
        else:
            kind = "sentencepiece" if self.parent is None else self.parent.tokenizer_kind
            self.directory.write_config(architecture.to_dict(), kind)
        return architecture

    def _encode(self, split, corpus):
        return corpus and encode_pairs(corpus, self.tokenizer, cache_dir=self.directory.path / "ids" / split)

    def _make_model(self, architecture):
        config = self.config
        model = TrainingModel(Transformer(architecture), config.label_smoothing)
        schedule = NoamSchedule(architecture.hidden_dim, config.warmup_steps, config.learning_rate)
        adam = keras.optimizers.Adam(schedule, config.adam_beta1, config.adam_beta2, config.adam_epsilon)
        model.compile(adam, steps_per_execution=config.steps_per_execution)
        return model

    def describe(self) -> str:
        """The resolved settings, the number of parameters and the lengths of the data, for people."""
        settings = [f"  {name} = {value}" for name, value in self.config.to_dict().items() if value is not None]
        parameters = sum(math.prod(variable.shape) for variable in self.model.trainable_variables)
        return "\n".join(
            [
                "Settings:",
                *settings,
                f"Training data: {report_lengths(self._pairs, self.config.max_length)}",
                f"Parameters: {parameters:,}",
            ]
        )

    def fit(self):
        """Trains up to the last step, writing checkpoints, logs and model.keras.

        Raises:
            CheckpointError: where a checkpoint can't be written.
        """
        config = self.config
        remaining = config.train_steps - self.step
        if remaining <= 0:
            return
        every = min(config.checkpoint_every or 1000, remaining)
        reports = [Terminal(config.train_steps), TensorBoard(self.directory.logs)]
        log = StepLog(self.step, config.train_steps, config.log_every, every, reports)
        dev = self._dev_pairs and evaluation_batches(self._dev_pairs, config.batch_tokens)
        self.model.fit(
            training_batches(self._pairs, config.batch_tokens, config.max_length, config.seed, self.step),
            epochs=math.ceil(remaining / every),
            steps_per_epoch=every,
            validation_data=dev,
            callbacks=[log, SaveModel(self.directory, self.checkpoints)],
            verbose=0,
            shuffle=False,
        )
        self.step = log.step
