"""Preparation of a run: vocabularies, architecture and encoded corpora."""

import dataclasses
import math

import keras
from absl import logging

from t2t_relpos.models import TransformerConfig
from trainer import metrics
from trainer.config import (
    ARCHITECTURE_SETTINGS,
    RELATIVE_SETTINGS,
    SCORE_SETTINGS,
    TEXT_FILES,
    RunConfig,
)
from trainer.data.batching import report_lengths
from trainer.data.corpus import MissingSplitError, digest, read_tfds
from trainer.data.encoding import encode_pairs
from trainer.data.sentencepiece_tokenizer import NORMALIZATIONS, SentencePieceTokenizer
from trainer.data.text_files import read_text
from trainer.data.text_report import describe_sides
from trainer.data.tokenizer import Tokenizers
from trainer.model_dir import TRANSLATION, ModelDirectory, sides
from trainer.training.checkpoints import Checkpoints


class Preparation:
    """The vocabularies, architecture and data of a run. Missing files are written.

    Args:
        config: the settings. They are resolved here.
        directory: a writable model directory.
        is_chief: whether this process may remove the settings of an earlier start that trained
            nothing, and replace vocabularies that it made.

    Attributes:
        config: the resolved settings, with the actual sizes of the vocabularies.
        parent: the model directory with the initial weights, or None.
        directory: the model directory.
        tokenizers: the model's `Tokenizers`.
        architecture: a `TransformerConfig`.
        train_pairs: the training corpus as `EncodedPairs`.
        dev_corpus: the dev set, or None.
        dev_pairs: the dev set as `EncodedPairs`, or None.
        contents: fingerprints of the training corpus and of the dev set.

    Raises:
        ValueError: if settings, data or the model directory are invalid.
    """

    def __init__(self, config: RunConfig, directory: ModelDirectory, *, is_chief: bool = True):
        self.config = config.resolve()
        parent = config.init_from
        self.parent = ModelDirectory.open(parent, TRANSLATION) if parent else None
        if directory.is_configured:
            directory.check_kind(TRANSLATION)
        self.directory = directory
        if is_chief and _has_settings_only(directory):
            directory.run_file.unlink(missing_ok=True)
            directory.config_file.unlink()
        self._is_left_over = is_chief and _is_left_over(directory)
        if self._is_left_over:
            self._check_left_over()
        self._recorded = {} if self._is_left_over else directory.read_run()
        self._keep_score_settings()
        self.tokenizers = self._load_tokenizers(config)
        self._vocabulary = "new" if self.tokenizers is None else "existing"
        if self.tokenizers is not None and self.parent is None:
            self.config = dataclasses.replace(self.config, **self.tokenizers.sizes)
        if directory.is_configured and not self._is_left_over:
            self._check_recorded()
        # Report invalid settings before the text is read and a vocabulary is trained.
        self.architecture = self._make_architecture()
        train = self._corpus("train")
        self.dev_corpus = self._corpus("dev")
        needs_dev = self.config.computes_dev_bleu or config.evaluate_every is not None
        if needs_dev and self.dev_corpus is None:
            raise ValueError(
                "Expected a dev set with evaluate_every, dev_bleu, keep_best or early_stopping. "
                "Received: none. Give --dev_source and --dev_target, or leave these flags out."
            )
        corpora = {"train": train, "dev": self.dev_corpus}
        self.contents = {name: c.fingerprint for name, c in corpora.items() if c is not None}
        self._warn_of_changed_text()
        # A vocabulary that the user has put into the directory has no origin.
        self._made_from = "init_from" if self.parent is not None else None
        if self.tokenizers is None:
            self.tokenizers = self._train_tokenizers(train)
        self._write_config()
        self.train_pairs = self._encode("train", train)
        self.dev_pairs = self._encode("dev", self.dev_corpus)

    def describe(self, model: keras.Model, devices: int) -> str:
        """Returns the settings, counts of training pairs and number of parameters as text.

        Args:
            model: the Transformer, or a model that contains it.
            devices: number of devices that train.
        """
        given = {k: value for k, value in self.config.to_dict().items() if value is not None}
        settings = [f"  {name} = {value}" for name, value in given.items()]
        lengths = report_lengths(self.train_pairs, self.config.max_length)
        parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
        source, target = (tokenizer.vocab_size for tokenizer in self.tokenizers)
        vocabulary = f"Vocabulary: {target} pieces ({self._vocabulary})"
        if not self.tokenizers.is_shared:
            sizes = f"{source} source and {target} target pieces"
            vocabulary = f"Vocabularies: {sizes} ({self._vocabulary})"
        lines = ["Settings:", *settings, vocabulary, f"Training data: {lengths}"]
        lines += describe_sides(self.train_pairs.counts, is_new=self._vocabulary == "new")
        if self.dev_pairs is not None:
            lines += self._describe_dev()
        lines.append(f"Parameters: {parameters:,}")
        if self.config.jit_compile:
            lines.append(_describe_programs(lengths.buckets, devices))
        return "\n".join(lines)

    def _describe_dev(self):
        lengths, limit = self.dev_pairs.sources.lengths, self.architecture.num_positions
        cut = 0 if limit is None else int((lengths > limit).sum())
        blank = report_lengths(self.dev_pairs, int(self.dev_pairs.lengths.max())).blank
        lines = [
            f"Dev data: {len(lengths)} pairs, {blank} with a blank side, {cut} sources cut.",
            *describe_sides(self.dev_pairs.counts, is_new=self._vocabulary == "new"),
        ]
        if self.config.computes_dev_bleu:
            references = list(self.dev_corpus.targets())
            warning = metrics.bleu_warning(references, self.config.bleu_tokenize)
            lines += [f"  {warning}"] if warning else []
        return lines

    def _keep_score_settings(self):
        """Sets unset settings of dev scores to those in run.json, or else to their defaults."""
        recorded = self._recorded
        kept = {name: recorded.get(name) or value for name, value in SCORE_SETTINGS.items()}
        current = {name: getattr(self.config, name) or kept[name] for name in kept}
        if recorded.get("dev_bleu") or self.directory.best.is_dir():
            self.directory.check_same(kept, current, "settings")
        self.config = dataclasses.replace(self.config, **current)

    def _warn_of_changed_text(self):
        """Logs a warning if a resumed run has other text than before, in any files."""
        recorded = self._recorded
        for split, content in self.contents.items():
            names = [name for name in TEXT_FILES if name.startswith(split)]
            names = names if self.config.data == "files" else ["data"]
            if split in recorded.get("contents", {}):
                has_changed = recorded["contents"][split] != content
            else:  # Earlier versions recorded only the names.
                files = {name: getattr(self.config, name) for name in names}
                has_changed = any(recorded.get(x) not in (None, files[x]) for x in names)
            if has_changed:
                logging.warning(
                    "Resuming with different data: the %s of this run has changed. It is now %s",
                    {"train": "training text", "dev": "dev set"}[split],
                    " and ".join(getattr(self.config, name) for name in names),
                )

    def _check_recorded(self):
        directory = self.directory
        if directory.model_file.exists() and not Checkpoints(directory.checkpoints).steps():
            raise ValueError(
                "Expected a model directory with a checkpoint to resume from. Received: "
                f"{directory.path}, which has a model and no checkpoint. Start from the model: "
                f"give --init_from={directory.path} and another --model_dir."
            )
        if self.parent is not None:
            same = (
                {f"{x.get('file', 'vocabulary')} sha256": x.get("sha256") for x in entries}
                for entries in (directory.vocabularies, self.parent.vocabularies)
            )
            directory.check_same(*same, "vocabulary")
        recorded, current = self._recorded, self.config.to_dict()
        # `_write_config` compares the architecture, including the defaults of the preset.
        names = [name for name in self.config.fixed_on_resume() if name in recorded]
        names = [name for name in names if name not in ARCHITECTURE_SETTINGS]
        fixed = ({name: run[name] for name in names} for run in (recorded, current))
        directory.check_same(*fixed, "settings")

    def _check_left_over(self):
        for file in self.directory.other_vocabularies(self.directory.vocabularies):
            raise ValueError(
                f"Expected the vocabularies that an earlier start left in {self.directory.path}. "
                f"Received: another {file.name}. To train with it, remove config.json and all "
                "other vocabularies. To train without it, remove it."
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

    def _train_tokenizers(self, corpus):
        config = self.config = dataclasses.replace(
            self.config,
            normalization=self.config.normalization or NORMALIZATIONS[0],
            byte_fallback=bool(self.config.byte_fallback),
        )
        options = {"normalization": config.normalization, "byte_fallback": config.byte_fallback}
        sizes = config.vocab_size, config.source_vocab_size
        self._made_from = digest(self.contents["train"], *sizes, *options.values())
        if self._is_left_over and self._made_from == _origin(self.directory):
            if all(file.is_file() for file in self.directory.vocabulary_files):
                self._vocabulary = "existing"
                return self.directory.load_tokenizers()

        def train(sentences, name, side=""):
            size = getattr(config, name)
            print(f"Training a {side}vocabulary of {size} pieces.", flush=True)
            try:
                return SentencePieceTokenizer.train(sentences, size, **options)
            except ValueError as error:
                text = str(error).replace("vocab_size", name)
                raise ValueError(text.replace("a vocabulary", f"a {side}vocabulary")) from error

        if config.source_vocab_size is None:
            return Tokenizers.shared(train(corpus.sentences(), "vocab_size"))
        source = train(corpus.sources(), "source_vocab_size", "source ")
        given = self.directory.vocabulary_file(side="source")
        is_given = given.is_file() and not self._is_left_over
        # A start that was killed between the two files has left the same vocabulary.
        if is_given and SentencePieceTokenizer.from_file(given).fingerprint != source.fingerprint:
            raise _incomplete(self.directory, [given])
        return Tokenizers(source, train(corpus.targets(), "vocab_size", "target "))

    def _load_tokenizers(self, requested):
        """Returns the tokenizers of the directory or of its parent, or None if there are none.

        Args:
            requested: the given settings of a `RunConfig`. The tokenizers must agree with them.
        """
        tokenizers, origin = None, self.directory.path
        if self.directory.is_configured and not self._is_left_over:
            tokenizers = self.directory.load_tokenizers()
        elif self.parent is not None:
            tokenizers, origin = self.parent.load_tokenizers(), self.parent.path
            others = self.directory.other_vocabularies(self.parent.vocabularies)
            if others and not self._is_left_over:
                raise ValueError(
                    f"Expected no vocabulary in {self.directory.path} with init_from: a run uses "
                    f"that of {origin}. Received: {others[0].name}. Remove it, or leave "
                    "--init_from out."
                )
        elif not self._is_left_over:
            tokenizers = _given_tokenizers(self.directory, requested.source_vocab_size)
        if tokenizers is None:
            return None
        flag = "--model_dir" if origin == self.directory.path else "--init_from"
        names = "normalization", "byte_fallback"
        found = list(tokenizers.sizes.items())
        found += [(name, getattr(tokenizer, name)) for name in names for tokenizer in tokenizers]
        for name, value in found:
            given = getattr(requested, name)
            if given not in (None, value):
                value = "none (one vocabulary)" if value is None else value
                raise ValueError(
                    f"Expected the {name} of {origin}, {value}. Received: {given}. Leave --{name} "
                    f"out to use that vocabulary, or give another {flag}."
                )
        return tokenizers

    def _make_architecture(self):
        """Returns the architecture. `_write_config` sets its sizes to those of the tokenizers."""
        settings, longest = self.config.architecture_overrides(), self.config.max_length
        if self.parent is None:
            settings["vocab_size"] = self.config.vocab_size
            if self.config.source_vocab_size is not None:
                settings["source_vocab_size"] = self.config.source_vocab_size
                settings["tie_embeddings"] = False
            architecture = TransformerConfig.from_preset(self.config.preset, **settings)
        else:
            architecture = TransformerConfig.from_dict(
                self.parent.read_config()["architecture"] | settings
            )
        limit = architecture.num_positions
        if limit is not None and longest > limit:
            if self.parent is not None:
                raise ValueError(
                    f"Expected max_length of at most {limit}, the number of learned positions of "
                    f"{self.parent.path}. Received: {longest}. Give --max_length={limit}."
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
        directory, is_shared = self.directory, self.tokenizers.is_shared
        self.architecture = dataclasses.replace(self.architecture, **self.tokenizers.sizes)
        architecture = self.architecture.to_dict()
        if directory.is_configured and not self._is_left_over:
            recorded = directory.read_config()["architecture"]
            directory.check_same(recorded, architecture, "configuration")
            return
        kind = "sentencepiece" if self.parent is None else self.parent.tokenizer_kind
        written = [directory.vocabulary_file(kind, side) for side in sides(is_shared=is_shared)]
        # In this order, a start that is killed leaves nothing that the next one takes for given.
        if self._is_left_over:
            for file in (*directory.vocabulary_files, directory.config_file):
                file.unlink(missing_ok=True)
        directory.run_file.unlink(missing_ok=True)
        try:
            directory.save_tokenizers(self.tokenizers, kind)
            directory.write_config(architecture, kind, self._made_from, is_shared=is_shared)
        except OSError:
            # Without config.json, the next start would take the vocabularies for given ones.
            for file in written if self._made_from is not None else ():
                file.unlink(missing_ok=True)
            raise

    def _encode(self, split, corpus):
        return corpus and encode_pairs(
            corpus, self.tokenizers, cache_dir=self.directory.path / "ids" / split
        )


def settings_to_resume(directory: ModelDirectory) -> dict:
    """Returns the recorded settings of a run that has trained, else an empty dict."""
    try:
        return {} if _is_untrained(directory) else directory.read_run()
    except OSError:  # Reported when the directory is created.
        return {}


def _describe_programs(buckets, devices):
    if devices == 1:
        return f"XLA: compiles at most {buckets} programs, one for each bucket."
    return (
        f"XLA: compiles at most {buckets * devices} programs, one for each of {buckets} buckets on "
        f"each of {devices} devices."
    )


def _is_untrained(directory):
    """Returns whether an earlier start has written config.json, but trained nothing."""
    has_trained = directory.model_file.exists() or Checkpoints(directory.checkpoints).steps()
    return directory.is_configured and not has_trained


def _is_left_over(directory):
    """Returns whether an earlier start made the vocabulary, but trained nothing with it."""
    return _is_untrained(directory) and _origin(directory) is not None


def _has_settings_only(directory):
    """Returns whether an earlier start used a given vocabulary, but trained nothing with it."""
    is_given = _is_untrained(directory) and _origin(directory) is None
    return is_given and directory.tokenizer_kind == "sentencepiece"


def _origin(directory):
    return directory.vocabularies[-1].get("made_from")


def _given_tokenizers(directory, source_vocab_size):
    """Returns the tokenizers of vocabularies that the user has put into a directory, or None."""
    files = {side: directory.vocabulary_file(side=side) for side in ("", "source", "target")}
    found = {side: file for side, file in files.items() if file.is_file()}
    if not found or ([*found] == ["source"] and source_vocab_size is not None):
        return None
    if [*found] not in ([""], ["source", "target"]):
        raise _incomplete(directory, found.values())
    loaded = [SentencePieceTokenizer.from_file(file) for file in found.values()]
    return Tokenizers(loaded[0], loaded[-1])


def _incomplete(directory, found):
    names = (directory.vocabulary_file(side=side).name for side in ("", "source", "target"))
    shared, source, target = names
    return ValueError(
        f"Expected either {shared}, or both {source} and {target}, in {directory.path}. Received: "
        f"{', '.join(file.name for file in found)}. Add the missing file, or remove what the model "
        "does not need, or what an interrupted start has left."
    )
