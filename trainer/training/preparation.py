"""Preparation of a run: vocabularies, architecture and encoded corpora."""

import dataclasses
import functools
import math
from collections.abc import Mapping

import keras
from absl import logging

from t2t_relpos.models import TransformerConfig
from t2t_relpos.t2t import config_from_hparams, parse_hparams

from .. import metrics, streams
from ..config import (
    ARCHITECTURE_SETTINGS,
    DROPOUT_SETTINGS,
    RELATIVE_SETTINGS,
    TEXT_FILES,
    RunConfig,
)
from ..data.batching import LengthReport, report_lengths
from ..data.corpus import Corpus, MissingSplitError, read_tfds
from ..data.encoding import EncodedPairs, encode_pairs
from ..data.sentencepiece_tokenizer import NORMALIZATIONS, SentencePieceTokenizer
from ..data.text_files import read_one_side, read_text
from ..data.text_report import describe_sides
from ..data.tokenizer import Tokenizers
from ..model_dir import LANGUAGE_MODEL, ModelDirectory
from ..recipes import read_architecture
from .checkpoints import Checkpoints
from .optimizer import NoamSchedule

# Settings of the architecture that are printed.
_ARCHITECTURE = (
    *("num_encoder_layers", "num_decoder_layers", "hidden_dim", "intermediate_dim", "num_heads"),
    *("position", *RELATIVE_SETTINGS, *DROPOUT_SETTINGS),
)


@dataclasses.dataclass(frozen=True)
class Preparation:
    """The vocabularies, architecture and data of a run.

    Attributes:
        config: the resolved settings, with the actual sizes of the vocabularies.
        parent: the model directory with the initial weights, or None.
        is_new: whether the vocabularies were trained now.
        dev_corpus, dev_pairs: the dev set, or None.
        contents: fingerprints of the training corpus and of the dev set.
    """

    config: RunConfig
    directory: ModelDirectory
    parent: ModelDirectory | None
    tokenizers: Tokenizers
    is_new: bool
    architecture: TransformerConfig
    train_pairs: EncodedPairs
    dev_corpus: Corpus | None
    dev_pairs: EncodedPairs | None
    contents: dict[str, str]

    @functools.cached_property
    def lengths(self) -> LengthReport:
        """Counts of the training pairs by their lengths."""
        return report_lengths(self.train_pairs, self.config.max_length)


def describe(prepared: Preparation, model: keras.Model, devices: int) -> str:
    """Returns the settings, counts of training pairs and number of parameters as text.

    `model` is the Transformer, or a model that contains it. `devices` is the number that train.
    """
    config = prepared.config
    lengths = prepared.lengths
    source, target = (tokenizer.vocab_size for tokenizer in prepared.tokenizers)
    vocabulary = f"Vocabularies: {source} source and {target} target pieces"
    if prepared.tokenizers.is_shared:
        vocabulary = f"Vocabulary: {target} pieces"
    lines = describe_settings(config, prepared.architecture)
    lines.append(f"{vocabulary} ({'new' if prepared.is_new else 'existing'})")
    lines.append(f"Training data: {lengths}")
    lines += describe_sides(prepared.train_pairs.counts, is_new=prepared.is_new)
    if prepared.dev_pairs is not None:
        lines += _describe_dev(prepared)
    lines.append(f"Parameters: {count_parameters(model):,}")
    if config.jit_compile:
        buckets = lengths.buckets
        each = "each bucket"
        if devices > 1:
            each = f"each of {buckets} buckets on each of {devices} devices"
        lines.append(f"XLA: compiles at most {buckets * devices} programs, one for {each}.")
    return "\n".join(lines)


def _describe_dev(prepared):
    pairs, limit = prepared.dev_pairs, prepared.architecture.num_positions
    report = report_lengths(pairs, int(pairs.lengths.max()))
    line = f"Dev data: {len(pairs)} {report.unit}, {report.describe_blank()}"
    if pairs.sources is not None:
        cut = 0 if limit is None else int((pairs.sources.lengths > limit).sum())
        line += f", {cut} sources cut"
    lines = [f"{line}.", *describe_sides(pairs.counts, is_new=prepared.is_new)]
    if prepared.config.computes_dev_bleu:
        references = list(prepared.dev_corpus.targets())
        warning = metrics.bleu_warning(references, prepared.config.bleu_tokenize)
        lines += [f"  {warning}"] if warning else []
    return lines


def describe_settings(config: RunConfig, architecture: TransformerConfig) -> list[str]:
    """Returns lines with the resolved settings, the architecture and the learning rate."""
    given = {name: value for name, value in config.to_dict().items() if value is not None}
    names = [
        name for name in _ARCHITECTURE if architecture.relative or name not in RELATIVE_SETTINGS
    ]
    if config.kind == LANGUAGE_MODEL:
        names.remove("num_encoder_layers")
    sizes = {name: getattr(architecture, name) for name in names}
    lines = ["Settings:", *(f"  {name} = {value}" for name, value in given.items())]
    lines += ["Architecture:", *(f"  {name} = {value}" for name, value in sizes.items())]
    schedule = NoamSchedule(architecture.hidden_dim, config.warmup_steps, config.learning_rate)
    # The first update is that of step 0.
    last = min(config.warmup_steps, config.train_steps - 1)
    lines.append(f"Largest learning rate: {float(schedule(last)):.3g}, at step {last}")
    if config.train_steps < config.warmup_steps:
        lines.append(
            f"  Warning: the run ends during warm-up, whose largest learning rate is "
            f"{float(schedule(config.warmup_steps)):.3g}. Give fewer --warmup_steps than "
            f"--train_steps."
        )
    return lines


def count_parameters(model: keras.Model) -> int:
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def prepare(
    requested: RunConfig,
    directory: ModelDirectory,
    devices: Mapping | None = None,
    *,
    is_chief: bool = True,
    dry_run: bool = False,
) -> Preparation:
    """Returns the `Preparation` of a run. Writes missing files to the directory.

    Args:
        requested: the settings before they are resolved.
        directory: the model directory. It may be missing with `dry_run`.
        devices: settings of `strategy.device_settings`. Default: those requested.
        is_chief: whether this process writes. The other workers use the chief's vocabularies.
        dry_run: whether to write nothing.

    Raises:
        ValueError: if settings, data or the model directory are invalid.
    """
    start = find_start(requested, directory, is_chief=is_chief)
    config = resolve_settings(requested, start, devices)
    # Invalid settings are reported before the text is read and a vocabulary is trained.
    architecture = make_architecture(config, start.parent)
    corpora = _read_corpora(config, is_evaluated=requested.evaluate_every is not None)
    contents = {split: corpus.fingerprint for split, corpus in corpora.items()}
    _warn_of_changed_text(config, start.recorded, contents)
    tokenizers = start.tokenizers or _train_tokenizers(config, corpora["train"])
    if start.resumes:
        recorded = directory.read_config()["architecture"]
        directory.check_same(recorded, architecture.to_dict(), "configuration")
    elif not dry_run:
        _write_start(config, directory, architecture, tokenizers)
    pairs = {
        split: encode_pairs(corpus, tokenizers, None if dry_run else directory.ids / split)
        for split, corpus in corpora.items()
    }
    return Preparation(
        config=config,
        directory=directory,
        parent=start.parent,
        tokenizers=tokenizers,
        is_new=start.tokenizers is None,
        architecture=architecture,
        train_pairs=pairs["train"],
        dev_corpus=corpora.get("dev"),
        dev_pairs=pairs.get("dev"),
        contents=contents,
    )


def has_trained(directory: ModelDirectory) -> bool:
    """Returns whether a directory has a model or checkpoints. Otherwise, a run starts anew."""
    folders = directory.checkpoints, directory.best
    return directory.model_file.exists() or any(Checkpoints(folder).steps() for folder in folders)


def recorded_settings(directory: ModelDirectory) -> dict:
    """Returns the settings in run.json if the directory has trained, else an empty dict."""
    try:
        return directory.read_run() if has_trained(directory) else {}
    except OSError:  # Reported when the directory is created.
        return {}


@dataclasses.dataclass(frozen=True)
class Start:
    """The files that a run starts from.

    Attributes:
        directory: the model directory.
        parent: the model directory with the initial weights, or None.
        resumes: whether the run keeps the settings and vocabularies of its directory.
        recorded: the settings of run.json, or an empty dict if the run doesn't resume.
        tokenizers: the existing tokenizers, or None if they are trained on the text.
    """

    directory: ModelDirectory
    parent: ModelDirectory | None
    resumes: bool
    recorded: dict
    tokenizers: Tokenizers | None


def find_start(requested: RunConfig, directory: ModelDirectory, *, is_chief: bool = True) -> Start:
    """Returns the `Start` of a run. `is_chief` is an argument of `prepare`.

    Raises:
        ValueError: if the directory has a model and no checkpoint, or a vocabulary that no run has
            written, or if its vocabularies are not those of the settings.
    """
    parent = None
    if requested.init_from is not None:
        parent = ModelDirectory.open(requested.init_from, requested.kind)
    tokenizers = _given_tokenizers(requested, parent)
    flag = "vocab" if parent is None else "init_from"
    resumes = has_trained(directory) or not is_chief
    if resumes:
        _check_resumable(directory, requested.kind)
        given, tokenizers, flag = tokenizers, directory.load_tokenizers(), "model_dir"
        if given is not None:
            same = (_digests(directory, found) for found in (tokenizers, given))
            directory.check_same(*same, "vocabulary")
    elif foreign := directory.foreign_vocabularies():
        raise ValueError(
            "Expected a --model_dir without vocabularies that no run has written. Received: "
            f"{foreign[0]}. Move it to another folder. To train with it, give its new path with "
            f"--{'source_vocab' if '.source.' in foreign[0].name else 'vocab'}."
        )
    if tokenizers is not None:
        _check_vocabularies(requested, tokenizers, flag)
    return Start(directory, parent, resumes, directory.read_run() if resumes else {}, tokenizers)


def _given_tokenizers(requested, parent):
    """Returns the tokenizers of `init_from` or `vocab`, or None without these settings."""
    if parent is not None:
        return parent.load_tokenizers()
    if requested.vocab is None:
        return None
    target = SentencePieceTokenizer.from_file(requested.vocab)
    if requested.source_vocab is None:
        return Tokenizers.shared(target)
    return Tokenizers(SentencePieceTokenizer.from_file(requested.source_vocab), target)


def _check_resumable(directory, kind):
    """Raises ValueError if the directory has another kind of model, or a model only."""
    directory.check_kind(kind)
    if directory.model_file.exists() and not Checkpoints(directory.checkpoints).steps():
        raise ValueError(
            "Expected a model directory with a checkpoint to resume from. Received: "
            f"{directory.path}, which has a model and no checkpoint. Start from the model: "
            f"give --init_from={directory.path} and another --model_dir."
        )


def _digests(directory, tokenizers):
    files = {directory.vocabulary_file(x.kind, side): x for side, x in tokenizers.by_side.items()}
    return {f"{file.name} sha256": tokenizer.sha256 for file, tokenizer in files.items()}


def _check_vocabularies(requested, tokenizers, flag):
    """Raises ValueError if settings differ from those of vocabularies that `flag` names."""
    names = "normalization", "byte_fallback"
    found = list(tokenizers.sizes.items())
    found += [(name, getattr(tokenizer, name)) for name in names for tokenizer in tokenizers]
    for name, value in found:
        given = getattr(requested, name)
        if given not in (None, value):
            value = "none (one vocabulary)" if value is None else value
            raise ValueError(
                f"Expected the {name} of {getattr(requested, flag)}, {value}. Received: {given}. "
                f"Leave --{name} out to use that vocabulary, or give another --{flag}."
            )


def resolve_settings(
    requested: RunConfig, start: Start, devices: Mapping | None = None
) -> RunConfig:
    """Returns the settings of a run, without None where the recipe or a file has a value.

    Raises:
        ValueError: if they differ from those of the run that is resumed.
    """
    if start.tokenizers is None:
        vocabulary = {
            "normalization": requested.normalization or NORMALIZATIONS[0],
            "byte_fallback": bool(requested.byte_fallback),
        }
    else:
        vocabulary = start.tokenizers.sizes if start.parent is None else {}
    scores = _score_settings(requested, start)
    config = requested.resolve(**(devices or {}), **vocabulary, **scores)
    # `prepare` compares the architecture, including the defaults of the preset.
    current = config.fixed_on_resume()
    names = [x for x in current if x in start.recorded and x not in ARCHITECTURE_SETTINGS]
    fixed = ({name: run[name] for name in names} for run in (start.recorded, current))
    start.directory.check_same(*fixed, "settings")
    return config


def _score_settings(requested, start):
    """Returns the settings of dev scores: those given, in run.json, or else the defaults."""
    recorded = start.recorded
    kept = {name: recorded.get(name) or value for name, value in requested.score_settings.items()}
    current = {name: getattr(requested, name) or kept[name] for name in kept}
    if start.resumes and (recorded.get("dev_bleu") or start.directory.best.is_dir()):
        start.directory.check_same(kept, current, "settings")
    return current


def make_architecture(config: RunConfig, parent: ModelDirectory | None) -> TransformerConfig:
    """Returns the architecture of resolved settings, or that of the parent with settings replaced.

    Raises:
        ValueError: if settings contradict the architecture.
    """
    settings, longest = config.architecture_overrides(), config.max_length
    if parent is None:
        settings["vocab_size"] = config.vocab_size
        if config.source_vocab_size is not None:
            settings["source_vocab_size"] = config.source_vocab_size
            settings["tie_embeddings"] = False
        architecture = _new_architecture(config, settings)
    else:
        architecture = TransformerConfig.from_dict(parent.read_config()["architecture"] | settings)
    limit = architecture.num_positions
    if limit is not None and longest > limit:
        if parent is not None:
            raise ValueError(
                f"Expected max_length of at most {limit}, the number of learned positions of "
                f"{parent.path}. Received: {longest}. Give --max_length={limit}."
            )
        architecture = dataclasses.replace(architecture, max_length=longest)
    for name in RELATIVE_SETTINGS:
        if name in settings and not architecture.relative:
            raise ValueError(
                f"Expected {name} only with relative positions. Received: {settings[name]} "
                f"with the position {architecture.position}. Leave it out."
            )
    return architecture


def _new_architecture(config, settings):
    """Returns the architecture of a preset, of hparams or of a JSON file, with settings replaced.

    Presets and hparams have no target space embedding, which would add the same vector everywhere.
    """
    if config.hparams_set is not None:
        sizes = {name: settings.get(name) for name in ("vocab_size", "source_vocab_size")}
        hparams = parse_hparams(config.hparams_set, config.hparams or "")
        is_language_model = config.kind == LANGUAGE_MODEL
        architecture = config_from_hparams(
            hparams, target_space_id=None, language_model=is_language_model, **sizes
        )
        return dataclasses.replace(architecture, **settings)
    if config.config is not None:
        return TransformerConfig.from_dict(read_architecture(config.config) | settings)
    return TransformerConfig.from_preset(config.preset, **settings)


def _read_corpora(config, *, is_evaluated):
    """Returns the corpora by split: "train", and "dev" if there is a dev set."""
    corpora = {split: _read_corpus(config, split) for split in ("train", "dev")}
    if corpora["dev"] is None and (config.needs_dev_set or is_evaluated):
        is_text = config.kind == LANGUAGE_MODEL
        files = "--dev_text" if is_text else "--dev_source and --dev_target"
        raise ValueError(
            "Expected a dev set with evaluate_every, dev_bleu, keep_best or early_stopping. "
            f"Received: none. Give {files}, or leave these flags out."
        )
    return {split: corpus for split, corpus in corpora.items() if corpus is not None}


def _read_corpus(config, split):
    if config.kind == LANGUAGE_MODEL:
        text = getattr(config, f"{split}_text")
        return read_one_side(text) if text else None
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


def _warn_of_changed_text(config, recorded, contents):
    """Logs a warning if a resumed run has other text than before, in any files."""
    for split, content in contents.items():
        names = [name for name in TEXT_FILES if name.startswith(split)]
        names = names if config.data == "files" else ["data"]
        if split in recorded.get("contents", {}):
            has_changed = recorded["contents"][split] != content
        else:  # Earlier versions recorded only the names.
            files = {name: getattr(config, name) for name in names}
            has_changed = any(recorded.get(x) not in (None, files[x]) for x in names)
        if has_changed:
            logging.warning(
                "Resuming with different data: the %s of this run has changed. It is now %s",
                {"train": "training text", "dev": "dev set"}[split],
                " and ".join(getattr(config, name) for name in names if getattr(config, name)),
            )


def _train_tokenizers(config, corpus):
    options = {"normalization": config.normalization, "byte_fallback": config.byte_fallback}

    def train(sentences, name, side=""):
        size = getattr(config, name)
        streams.write_line(f"Training a {side}vocabulary of {size} pieces.")
        try:
            return SentencePieceTokenizer.train(sentences, size, **options)
        except ValueError as error:
            text = str(error).replace("vocab_size", name)
            raise ValueError(text.replace("a vocabulary", f"a {side}vocabulary")) from error

    if config.source_vocab_size is None:
        return Tokenizers.shared(train(corpus.sentences(), "vocab_size"))
    source = train(corpus.sources(), "source_vocab_size", "source ")
    return Tokenizers(source, train(corpus.targets(), "vocab_size", "target "))


def _write_start(config, directory, architecture, tokenizers):
    """Writes config.json and the vocabularies. Replaces those of a start that trained nothing."""
    old = [directory.run_file]
    if directory.is_configured:
        old += directory.vocabulary_files
        names = ", ".join(file.name for file in (directory.config_file, *old) if file.is_file())
        streams.write_line(f"{directory.path}: replacing {names} of a start that trained nothing.")
    for file in old:
        file.unlink(missing_ok=True)
    # config.json is the first, because it has the digests: a vocabulary that a killed start leaves
    # is then known not to be a user's.
    made_from = "vocab" if config.vocab else "text"
    made_from = "init_from" if config.init_from else made_from
    directory.write_config(architecture.to_dict(), tokenizers, config.kind, made_from)
    directory.save_tokenizers(tokenizers)
