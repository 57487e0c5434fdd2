"""The model directory: the files of one model. `train`, `import_t2t` and `average` write it.

config.json            kind of model, architecture, tokenizers, format version
model.keras            the Transformer or CausalLM, without the optimizer
vocab.model            the SentencePiece vocabulary (`vocab.subwords` for tensor2tensor's); or, with
                       a vocabulary for each side, vocab.source.model and vocab.target.model
run.json               the resolved settings of the training run
checkpoints/step-000123/
best/step-000123/      checkpoints with the best scores on the dev set, with --keep_best
evaluations.json       results of all evaluations on the dev set
logs/                  TensorBoard logs
ids/                   token ids of the corpora, a cache for resumed runs; may be deleted
.lock                  locked while a training run uses the directory

This module has the paths of these files, and formats and checks of the first four.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import zipfile
from pathlib import Path

import filelock
from absl import logging

from . import atomic_files

FORMAT_VERSION = 2
VOCABULARY_SUFFIXES = {"sentencepiece": ".model", "subwords": ".subwords"}
# Kinds of models: a `Transformer`, and a `CausalLM`.
TRANSLATION, LANGUAGE_MODEL = "translation", "language_model"
LOCK_NAME = ".lock"


class ModelDirectory:
    """A model directory: its paths, and methods that read and write its files.

    Args:
        path: path of the directory. The constructor does not access it.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.model_file = self.path / "model.keras"
        self.run_file = self.path / "run.json"
        self.checkpoints = self.path / "checkpoints"
        self.best = self.path / "best"
        self.evaluations_file = self.path / "evaluations.json"
        self.logs = self.path / "logs"
        self.ids = self.path / "ids"
        self._lock = None

    @classmethod
    def open(cls, path: str | os.PathLike, kind: str | None = None) -> "ModelDirectory":
        """Returns an existing model directory.

        Args:
            path: path of the directory.
            kind: "translation" or "language_model", the kind of model that the caller needs.
                Default: any.

        Raises:
            ValueError: if it is not a model directory, has another format version, or another kind
                of model.
        """
        directory = cls(path)
        directory.read_config()
        if kind is not None:
            directory.check_kind(kind)
        return directory

    @classmethod
    def create(cls, path: str | os.PathLike, *, lock: bool = False) -> "ModelDirectory":
        """Creates a directory for training if it is missing, and removes partly written files.

        Args:
            path: path of the directory.
            lock: whether to lock the directory until `unlock` is called or the process ends.

        Raises:
            ValueError: if it can't be written, is a file, or another process has locked it.
        """
        directory = cls(path)
        if directory.path.exists() and not directory.path.is_dir():
            raise ValueError(
                f"Expected a directory. Received: {path}, which is a file. Choose another "
                "--model_dir."
            )
        try:
            # `Path.mkdir` fails for a link to a folder that does not exist.
            os.makedirs(os.path.realpath(path), exist_ok=True)
            if lock:
                directory._acquire_lock()
            # The file needs content: on a full disk, an empty file can still be created.
            atomic_files.write_text(directory.path / "writable", "content")
            (directory.path / "writable").unlink()
        except OSError as error:
            directory.unlock()
            raise ValueError(
                f"Expected a model directory that can be written. Received: {path} "
                f"({error.strerror}). Free space, grant write permission, or choose another "
                "--model_dir."
            ) from error
        for folder in (directory.path, *directory.path.glob("ids/*")):
            atomic_files.remove_leftovers(folder)
        return directory

    def _acquire_lock(self):
        lock = self._new_lock()
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise ValueError(
                "Expected a model directory that no other process is using. Received: "
                f"{self.path}, locked by another process. Wait until it ends, or choose another "
                "--model_dir."
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
                raise
            # Some network file systems do not support locks.
            logging.warning("%s can't be locked: %s", self.path, error.strerror)
        self._lock = lock

    def unlock(self):
        """Releases the lock, and removes the directory if it has no other file.

        Does not raise: the directory may have been deleted, and an error would hide another one.
        """
        if self._lock is None:
            return
        with contextlib.suppress(OSError):
            self._lock.release()
        self._lock = None
        with contextlib.suppress(OSError):
            # Another run may have deleted the directory and created it again.
            if os.listdir(self.path) == [LOCK_NAME]:
                with self._new_lock():
                    shutil.rmtree(self.path)

    def _new_lock(self):
        return filelock.FileLock(self.path / LOCK_NAME, blocking=False)

    @property
    def is_configured(self) -> bool:
        """Whether config.json exists."""
        return self.config_file.is_file()

    @property
    def kind(self) -> str:
        """Kind of model: "translation" or "language_model"."""
        # Earlier versions had only models for translation.
        return self.read_config().get("model", TRANSLATION)

    def check_kind(self, kind: str):
        """Raises ValueError if the directory has another kind of model."""
        if self.kind != kind:
            raise ValueError(
                f"Expected a model directory with a model of kind {kind}. Received: {self.path}, "
                f"with a model of kind {self.kind}. A language model is trained with --train_text "
                "and evaluated with --text. Models of all kinds can be averaged, exported with "
                "`python -m trainer.export`, and loaded in Python with "
                "`ModelDirectory.open(...).load_model()`."
            )

    @property
    def tokenizer_kind(self) -> str:
        """Kind of tokenizer: "sentencepiece", "subwords", or "none" without a vocabulary."""
        return self.read_config()["tokenizer"]["kind"]

    @property
    def vocabularies(self) -> list[dict]:
        """The tokenizer entries of config.json: one, or the source's and the target's."""
        config = self.read_config()
        return [config[name] for name in ("source_tokenizer", "tokenizer") if name in config]

    @property
    def vocabulary_files(self) -> list[Path]:
        """Paths of the vocabularies in config.json: none, one, or the source's and the target's."""
        return [self.path / entry["file"] for entry in self.vocabularies if "file" in entry]

    def foreign_vocabularies(self) -> list[Path]:
        """Returns the vocabularies in the directory that no training run has written."""
        entries = self.vocabularies if self.is_configured else []
        # Runs of earlier versions could use a user's file, of which they recorded no `made_from`.
        written = {(x["file"], x["sha256"]) for x in entries if "made_from" in x}
        files = (
            self.vocabulary_file(kind, side)
            for kind in VOCABULARY_SUFFIXES
            for side in ("", "source", "target")
        )
        return [x for x in files if x.is_file() and (x.name, _digest(x)) not in written]

    def vocabulary_file(self, kind: str = "sentencepiece", side: str = "") -> Path:
        """Returns the path of the vocabulary of a kind of tokenizer: joint, or that of a side."""
        name = f"vocab.{side}" if side else "vocab"
        return self.path / f"{name}{VOCABULARY_SUFFIXES[kind]}"

    def save_tokenizers(self, tokenizers):
        """Writes the vocabulary, or those of source and target. `write_config` records them."""
        for side, tokenizer in tokenizers.by_side.items():
            tokenizer.save(self.vocabulary_file(tokenizer.kind, side))

    def write_config(
        self,
        architecture: dict,
        tokenizers=None,
        model_kind: str = TRANSLATION,
        made_from: str | None = None,
    ):
        """Writes config.json.

        Args:
            architecture: `TransformerConfig.to_dict()`.
            tokenizers: the `Tokenizers` that `save_tokenizers` writes. Default: none.
            model_kind: kind of model, see `kind`.
            made_from: for a directory that `train` writes, the origin of the vocabularies.
        """
        config = {"format_version": FORMAT_VERSION, "model": model_kind}
        config |= {"architecture": architecture, "tokenizer": {"kind": "none"}}
        for side, tokenizer in tokenizers.by_side.items() if tokenizers else ():
            file = self.vocabulary_file(tokenizer.kind, side)
            entry = {"kind": tokenizer.kind, "file": file.name, "sha256": tokenizer.sha256}
            entry |= {"made_from": made_from} if made_from else {}
            config["source_tokenizer" if side == "source" else "tokenizer"] = entry
        _write_json(self.config_file, config)

    def read_config(self) -> dict:
        """Returns the content of config.json.

        Returns:
            A dict with `format_version`, `model` (see `kind`; missing in files of versions without
            language models), `architecture` (for `TransformerConfig.from_dict`) and `tokenizer`
            (`kind`, `file`, `sha256`, and in directories of `train` `made_from`: "text", "vocab" or
            "init_from", and in earlier versions a digest or none). If source and target have
            separate vocabularies, `tokenizer` is the target's, and `source_tokenizer` the source's.

        Raises:
            ValueError: if this is not a model directory, or has another format version.
        """
        if not self.is_configured:
            state = "is a file" if self.path.exists() else "does not exist"
            state = "has none" if self.path.is_dir() else state
            raise ValueError(
                f"Expected a model directory, which has a config.json. Received: {self.path}, "
                f"which {state}. Create one with `python -m trainer.train --model_dir=...`, or "
                "give the path of an existing model directory."
            )
        config = _read_json(self.config_file)
        version = config.get("format_version")
        if version != FORMAT_VERSION:
            is_newer = isinstance(version, int) and version > FORMAT_VERSION
            raise ValueError(
                f"Expected a model directory of format version {FORMAT_VERSION}. Received: "
                f"{self.path}, of version {version}, written by "
                f"{'a newer' if is_newer else 'an older'} version of this program. Read it with "
                "that version, or train again."
            )
        return config

    def check_same(self, recorded: dict, current: dict, description: str):
        """Raises ValueError if the settings of a run differ from those of the directory.

        The message has both values of each, and `description`, the name of the settings.
        """
        differing = [
            f"{name} is {_format(recorded, name)} in the directory and {_format(current, name)} in "
            "this run"
            for name in dict.fromkeys([*recorded, *current])
            if _format(recorded, name) != _format(current, name)
        ]
        if differing:
            raise ValueError(
                f"Expected a model directory created with the {description} of this run. Received: "
                f"{self.path}, where {'; '.join(differing)}. Use the same settings, or another "
                "--model_dir."
            )

    def load_tokenizer(self):
        """Returns the tokenizer of a directory with one vocabulary.

        Raises:
            ValueError: if there is no vocabulary, it has changed since config.json was written, or
                source and target have separate vocabularies.
        """
        tokenizers = self.load_tokenizers()
        if not tokenizers.is_shared:
            raise ValueError(
                "Expected one vocabulary of source and target. Received: "
                f"{self.path}, which has two. Load them with `load_tokenizers()`."
            )
        return tokenizers.target

    def load_tokenizers(self):
        """Returns the `Tokenizers` of the directory: one object if it has one vocabulary.

        Raises:
            ValueError: if there is no vocabulary, or one has changed since config.json was written.
        """
        from .data.tokenizer import Tokenizers

        loaded = [self._load_tokenizer(entry) for entry in self.vocabularies]
        return Tokenizers(loaded[0], loaded[-1])

    def _load_tokenizer(self, entry):
        """Returns the tokenizer of an entry of config.json."""
        if entry["kind"] == "none":
            raise ValueError(
                f"Expected a model with a vocabulary. Received: {self.path}, which was imported "
                "without one. Import it again with --vocab, and with --source_vocab if the inputs "
                "have a separate one."
            )
        vocabulary = self.path / entry["file"]
        if not vocabulary.is_file():
            raise ValueError(
                f"Expected the vocabulary of the model at {vocabulary}. Received: no such file. "
                "Restore it, or train in another --model_dir."
            )
        if _digest(vocabulary) != entry["sha256"]:
            raise ValueError(
                f"Expected the vocabulary that the model was trained with. Received: {vocabulary}, "
                "which has changed since: its SHA-256 differs from the one in config.json. "
                "Restore the file, or train in another --model_dir."
            )
        # These modules import TensorFlow Text.
        if entry["kind"] == "subwords":
            from .data.subword_tokenizer import SubwordTokenizer as Tokenizer
        else:
            from .data.sentencepiece_tokenizer import SentencePieceTokenizer as Tokenizer
        return Tokenizer.from_file(vocabulary)

    def token_names(self, vocab_size: int, side: str = "target") -> tuple[list[str], int]:
        """Returns unique names of the model's token ids, and the id of unknown tokens.

        Names are SentencePiece's pieces, tensor2tensor's subtokens, or decimal numbers if there is
        no vocabulary.

        Args:
            vocab_size: the model's number of ids.
            side: "source" or "target".

        Raises:
            ValueError: if the vocabulary is missing, has changed, or has another size.
        """
        if self.tokenizer_kind == "none":
            return list(map(str, range(vocab_size))), 0
        entry = self.vocabularies[0 if side == "source" else -1]
        tokenizer = self._load_tokenizer(entry)
        if tokenizer.vocab_size != vocab_size:
            file = self.path / entry["file"]
            raise ValueError(
                f"Expected a vocabulary of {vocab_size} ids, the vocabulary size of the model. "
                f"Received: {file} with {tokenizer.vocab_size} ids. Restore the vocabulary that "
                "the model was trained with."
            )
        return _distinct(tokenizer.names), tokenizer.unk_id

    def save_model(self, model):
        """Writes a model to model.keras atomically. Its compute dtype is saved as float32."""
        with atomic_files.atomic_file(self.model_file) as temporary:
            _in_float32(model).save(temporary)

    def has_intact_model(self) -> bool:
        """Returns whether model.keras exists and the checksums of its ZIP archive are correct."""
        try:
            with zipfile.ZipFile(self.model_file) as archive:
                return archive.testzip() is None
        except (OSError, zipfile.BadZipFile):
            return False

    def load_model(self):
        """Returns the model of model.keras, a `Transformer` or a `CausalLM`.

        Raises:
            ValueError: if training has not written the file yet, or it can't be read.
        """
        self.read_config()
        if not self.model_file.is_file():
            raise ValueError(
                f"Expected a trained model at {self.model_file}. Received: no such file, because "
                "training has not reached its first checkpoint. Rerun the same "
                "`python -m trainer.train` command to resume."
            )
        import keras

        import t2t_relpos.models  # noqa: F401  (registers the Transformer with keras)

        try:
            return keras.models.load_model(self.model_file)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"Expected a readable Keras model. Received: {self.model_file}, which fails to "
                f"load ({error}). Rerun the same `python -m trainer.train` command to write it "
                "again."
            ) from error

    def write_run(self, settings: dict):
        """Writes the resolved settings of a run to run.json."""
        _write_json(self.run_file, settings)

    def read_run(self) -> dict:
        """Returns the settings in run.json, or an empty dict if there is no such file."""
        return _read_json(self.run_file) if self.run_file.is_file() else {}


def _distinct(names):
    """Replaces empty names, and all but the last of several equal names, with "<id N>".

    tensor2tensor's vocabularies may contain both. Their ids are never used. CTranslate2 requires
    unique names.

    >>> from trainer.model_dir import _distinct
    >>> _distinct(["<pad>", "<EOS>", "a", "", "a"])
    ['<pad>', '<EOS>', '<id 2>', '<id 3>', 'a']
    """
    last = {name: i for i, name in enumerate(names) if name}
    return [name if last.get(name) == i else f"<id {i}>" for i, name in enumerate(names)]


def _in_float32(model):
    if model.compute_dtype == "float32":
        return model
    copy = type(model).from_config(model.get_config() | {"dtype": "float32"})
    copy.set_weights(model.get_weights())
    return copy


def _format(settings, name):
    return "not set" if settings.get(name) is None else json.dumps(settings[name])


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write_json(path, content):
    atomic_files.write_text(path, json.dumps(content, indent=2) + "\n")


def _read_json(path):
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"it contains a {type(content).__name__}")
        return content
    except ValueError as error:
        raise ValueError(
            f"Expected a JSON object. Received: {path}, which is not one ({error}). Restore the "
            "file, or train in another --model_dir."
        ) from error
