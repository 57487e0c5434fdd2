"""Preparation of a run: vocabularies, architecture and encoded corpora."""

import dataclasses
import math

import keras
from absl import logging

from t2t_relpos.models import TransformerConfig
from t2t_relpos.t2t import config_from_hparams, parse_hparams

from .. import metrics
from ..config import (
    ARCHITECTURE_SETTINGS,
    DROPOUT_SETTINGS,
    RELATIVE_SETTINGS,
    TEXT_FILES,
    RunConfig,
)
from ..data.batching import report_lengths
from ..data.corpus import Corpus, MissingSplitError, digest, read_tfds
from ..data.encoding import EncodedPairs, encode_pairs
from ..data.sentencepiece_tokenizer import NORMALIZATIONS, SentencePieceTokenizer
from ..data.text_files import read_one_side, read_text
from ..data.text_report import describe_sides
from ..data.tokenizer import Tokenizers
from ..model_dir import LANGUAGE_MODEL, ModelDirectory, sides
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


def describe(prepared: Preparation, model: keras.Model, devices: int) -> str:
    """Returns the settings, counts of training pairs and number of parameters as text.

    `model` is the Transformer, or a model that contains it. `devices` is the number that train.
    """
    config = prepared.config
    lengths = report_lengths(prepared.train_pairs, config.max_length)
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


def plan(config: RunConfig, directory: ModelDirectory) -> tuple[RunConfig, TransformerConfig]:
    """Returns the resolved settings and the architecture of a run, without reading its data.

    A vocabulary that is not trained yet is taken to have the size of the settings.
    """
    config, _, tokenizers, architecture = _plan(config, directory, is_chief=True)
    sizes = {} if tokenizers is None else tokenizers.sizes
    return config, dataclasses.replace(architecture, **sizes)


def prepare(config: RunConfig, directory: ModelDirectory, *, is_chief: bool = True) -> Preparation:
    """Returns the `Preparation` of a run. Missing files are written.

    `is_chief`: whether this process may remove the settings of an earlier start that trained
    nothing, and replace vocabularies that it made.

    Raises:
        ValueError: if settings, data or the model directory are invalid.
    """
    requested = config
    config, start, tokenizers, architecture = _plan(requested, directory, is_chief=is_chief)
    corpora = {split: _read_corpus(config, split) for split in ("train", "dev")}
    if corpora["dev"] is None and (config.needs_dev_set or requested.evaluate_every is not None):
        is_text = config.kind == LANGUAGE_MODEL
        files = "--dev_text" if is_text else "--dev_source and --dev_target"
        raise ValueError(
            "Expected a dev set with evaluate_every, dev_bleu, keep_best or early_stopping. "
            f"Received: none. Give {files}, or leave these flags out."
        )
    contents = {name: c.fingerprint for name, c in corpora.items() if c is not None}
    _warn_of_changed_text(config, start.recorded, contents)
    # A vocabulary that the user has put into the directory has no origin.
    made_from, is_new = "init_from" if start.parent is not None else None, False
    if tokenizers is None:
        config = dataclasses.replace(
            config,
            normalization=config.normalization or NORMALIZATIONS[0],
            byte_fallback=bool(config.byte_fallback),
        )
        sizes = config.vocab_size, config.source_vocab_size
        options = config.normalization, config.byte_fallback
        made_from = digest(contents["train"], *sizes, *options)
        files = directory.vocabulary_files if start.is_left_over else []
        # An earlier start made them from the same text.
        if files and made_from == _origin(directory) and all(file.is_file() for file in files):
            tokenizers = directory.load_tokenizers()
    if tokenizers is None:
        tokenizers, is_new = _train_tokenizers(config, corpora["train"], start), True
    architecture = dataclasses.replace(architecture, **tokenizers.sizes)
    _write_config(start, config.kind, architecture, tokenizers, made_from)

    def encode(split):
        cache = directory.path / "ids" / split
        return corpora[split] and encode_pairs(corpora[split], tokenizers, cache_dir=cache)

    return Preparation(
        config=config,
        directory=directory,
        parent=start.parent,
        tokenizers=tokenizers,
        is_new=is_new,
        architecture=architecture,
        train_pairs=encode("train"),
        dev_corpus=corpora["dev"],
        dev_pairs=encode("dev"),
        contents=contents,
    )


def _plan(requested, directory, *, is_chief):
    """Returns the resolved settings, the `_Start`, the given tokenizers and the architecture.

    Invalid settings are reported here, before the text is read and a vocabulary is trained.
    """
    config = requested.resolve()
    start = _find_start(config, directory, is_chief=is_chief)
    config = dataclasses.replace(config, **_score_settings(config, start))
    tokenizers = _load_tokenizers(requested, start)
    if tokenizers is not None and start.parent is None:
        config = dataclasses.replace(config, **tokenizers.sizes)
    if start.resumes:
        _check_recorded(config, start)
    return config, start, tokenizers, _make_architecture(config, start.parent)


@dataclasses.dataclass(frozen=True)
class _Start:
    """A model directory, and the files that earlier starts have left in it.

    Attributes:
        parent: the model directory with the initial weights, or None.
        is_left_over: whether an earlier start made the vocabulary, but trained nothing with it.
        resumes: whether an earlier start has written settings that this run must keep.
        recorded: the settings of run.json, or an empty dict if the run doesn't resume.
    """

    directory: ModelDirectory
    parent: ModelDirectory | None
    is_left_over: bool
    resumes: bool
    recorded: dict


def _find_start(config, directory, *, is_chief):
    """Returns the `_Start` of a directory.

    If an earlier start used a given vocabulary, but trained nothing with it, removes its settings.
    """
    parent = ModelDirectory.open(config.init_from, config.kind) if config.init_from else None
    if directory.is_configured:
        directory.check_kind(config.kind)
    is_untrained = is_chief and _is_untrained(directory)
    is_left_over = is_untrained and _origin(directory) is not None
    if is_untrained and not is_left_over and directory.tokenizer_kind == "sentencepiece":
        directory.run_file.unlink(missing_ok=True)
        directory.config_file.unlink()
    others = directory.other_vocabularies(directory.vocabularies) if is_left_over else []
    if others:
        raise ValueError(
            f"Expected the vocabularies that an earlier start left in {directory.path}. Received: "
            f"another {others[0].name}. To train with it, remove config.json and all other "
            "vocabularies. To train without it, remove it."
        )
    resumes = directory.is_configured and not is_left_over
    recorded = {} if is_left_over else directory.read_run()
    return _Start(directory, parent, is_left_over, resumes, recorded)


def _score_settings(config, start):
    """Returns the settings of dev scores: those given, in run.json, or else the defaults."""
    recorded = start.recorded
    kept = {name: recorded.get(name) or value for name, value in config.score_settings.items()}
    current = {name: getattr(config, name) or kept[name] for name in kept}
    if recorded.get("dev_bleu") or start.directory.best.is_dir():
        start.directory.check_same(kept, current, "settings")
    return current


def _load_tokenizers(requested, start):
    """Returns the tokenizers of the directory or of its parent, or None. Checks their settings."""
    directory, parent = start.directory, start.parent
    tokenizers, origin = None, directory.path
    if start.resumes:
        tokenizers = directory.load_tokenizers()
    elif parent is not None:
        tokenizers, origin = parent.load_tokenizers(), parent.path
        others = directory.other_vocabularies(parent.vocabularies)
        if others and not start.is_left_over:
            raise ValueError(
                f"Expected no vocabulary in {directory.path} with init_from: a run uses "
                f"that of {origin}. Received: {others[0].name}. Remove it, or leave "
                "--init_from out."
            )
    elif not start.is_left_over:
        tokenizers = _given_tokenizers(directory, requested.source_vocab_size)
    if tokenizers is None:
        return None
    flag = "--model_dir" if origin == directory.path else "--init_from"
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


def _check_recorded(config, start):
    """Checks that the run can resume with these settings."""
    directory, parent = start.directory, start.parent
    if directory.model_file.exists() and not Checkpoints(directory.checkpoints).steps():
        raise ValueError(
            "Expected a model directory with a checkpoint to resume from. Received: "
            f"{directory.path}, which has a model and no checkpoint. Start from the model: "
            f"give --init_from={directory.path} and another --model_dir."
        )
    if parent is not None:
        same = (
            {f"{x.get('file', 'vocabulary')} sha256": x.get("sha256") for x in entries}
            for entries in (directory.vocabularies, parent.vocabularies)
        )
        directory.check_same(*same, "vocabulary")
    recorded, current = start.recorded, config.to_dict()
    # `_write_config` compares the architecture, including the defaults of the preset.
    names = [name for name in config.fixed_on_resume() if name in recorded]
    names = [name for name in names if name not in ARCHITECTURE_SETTINGS]
    fixed = ({name: run[name] for name in names} for run in (recorded, current))
    directory.check_same(*fixed, "settings")


def _make_architecture(config, parent):
    """Returns the architecture, with the given sizes of the vocabularies."""
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


def _train_tokenizers(config, corpus, start):
    options = {"normalization": config.normalization, "byte_fallback": config.byte_fallback}

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
    given = start.directory.vocabulary_file(side="source")
    is_given = given.is_file() and not start.is_left_over
    # A start that was killed between the two files has left the same vocabulary.
    if is_given and SentencePieceTokenizer.from_file(given).fingerprint != source.fingerprint:
        raise _incomplete(start.directory, [given])
    return Tokenizers(source, train(corpus.targets(), "vocab_size", "target "))


def _write_config(start, model, architecture, tokenizers, made_from):
    """Writes the vocabularies and config.json, or checks that the directory has the same."""
    directory, architecture = start.directory, architecture.to_dict()
    if start.resumes:
        recorded = directory.read_config()["architecture"]
        directory.check_same(recorded, architecture, "configuration")
        return
    is_shared = tokenizers.is_shared
    kind = "sentencepiece" if start.parent is None else start.parent.tokenizer_kind
    written = [directory.vocabulary_file(kind, side) for side in sides(is_shared=is_shared)]
    # In this order, a start that is killed leaves nothing that the next one takes for given.
    if start.is_left_over:
        for file in (*directory.vocabulary_files, directory.config_file):
            file.unlink(missing_ok=True)
    directory.run_file.unlink(missing_ok=True)
    try:
        directory.save_tokenizers(tokenizers, kind)
        directory.write_config(architecture, kind, made_from, model, is_shared=is_shared)
    except OSError:
        # Without config.json, the next start would take the vocabularies for given ones.
        for file in written if made_from is not None else ():
            file.unlink(missing_ok=True)
        raise


def settings_to_resume(directory: ModelDirectory) -> dict:
    """Returns the recorded settings of a run that has trained, else an empty dict."""
    try:
        return {} if _is_untrained(directory) else directory.read_run()
    except OSError:  # Reported when the directory is created.
        return {}


def _is_untrained(directory):
    """Returns whether an earlier start has written config.json, but trained nothing."""
    has_trained = directory.model_file.exists() or Checkpoints(directory.checkpoints).steps()
    return directory.is_configured and not has_trained


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
