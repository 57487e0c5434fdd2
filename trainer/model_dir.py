"""A model directory: everything about one trained model, written by training, read by every other
command.

config.json            architecture, tokenizer, format version
model.keras            the Transformer only
vocab.model            the SentencePiece vocabulary (`vocab.subwords` for tensor2tensor's)
run.json               the resolved settings of the training run
checkpoints/step-000123/
best/step-000123/      checkpoints with the best BLEU on dev, where asked for
evaluations.json       what every evaluation on dev gave
logs/                  for TensorBoard
ids/                   the corpora as ids, kept for continuing; may be deleted
.lock                  locked while a run trains here
nan/step-000123.npz    a batch whose loss was not a number, where that stopped the run
"""

import fcntl
import hashlib
import json
import os
import shutil
import socket
import zipfile
from pathlib import Path

from absl import logging

from trainer import atomic_files

FORMAT_VERSION = 2
LOCK_NAME = ".lock"
VOCABULARY_FILES = {"sentencepiece": "vocab.model", "subwords": "vocab.subwords"}


class ModelDirectory:
    """Paths in a model directory, and what its files hold.

    Args:
        path: the directory. Nothing is looked at yet: see `open` and `create`.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.model_file = self.path / "model.keras"
        self.run_file = self.path / "run.json"
        self.checkpoints = self.path / "checkpoints"
        self.best = self.path / "best"
        self.evaluations_file = self.path / "evaluations.json"
        self.nan = self.path / "nan"
        self.logs = self.path / "logs"
        self._lock_descriptor = None

    @classmethod
    def open(cls, path: str | os.PathLike) -> "ModelDirectory":
        """A directory that holds a model's config.json.

        Raises:
            ValueError: where it doesn't, or where a newer version of the format wrote it.
        """
        directory = cls(path)
        directory.read_config()
        return directory

    @classmethod
    def create(cls, path: str | os.PathLike, lock: bool = False) -> "ModelDirectory":
        """A directory to train in: made where missing, proven to be writable, and cleared of
        half-written files.

        Args:
            path: its path.
            lock: whether to lock it until `unlock` is called or the process ends.

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
            directory.path.mkdir(parents=True, exist_ok=True)
            if lock:
                directory._lock()
            with atomic_files.whole_file(directory.path / "writable") as aside:
                aside.write_text("something, which a full disk has no room for")
            (directory.path / "writable").unlink()
        except OSError as error:
            directory.unlock()
            raise ValueError(
                f"Expected a model directory that can be written. Received: {path} "
                f"({error.strerror}). "
                "Make room, give permission to write, or choose another with --model_dir."
            ) from error
        for place in (directory.path, directory.nan, *directory.path.glob("ids/*")):
            atomic_files.remove_leftovers(place)
        return directory

    def _lock(self):
        descriptor = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock_file(descriptor, self.path)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        except BaseException:
            os.close(descriptor)
            raise
        self._lock_descriptor = descriptor

    def unlock(self):
        """Releases the lock, and removes the directory if it is otherwise empty."""
        if self._lock_descriptor is None:
            return
        if {entry.name for entry in self.path.iterdir()} == {LOCK_NAME}:
            shutil.rmtree(self.path)
        os.close(self._lock_descriptor)
        self._lock_descriptor = None

    @property
    def is_configured(self) -> bool:
        """Whether a run has written its config.json."""
        return self.config_file.is_file()

    @property
    def tokenizer_kind(self) -> str:
        """ "sentencepiece", "subwords", or "none" for a model that takes and gives ids."""
        return self.read_config()["tokenizer"]["kind"]

    def vocabulary_file(self, kind: str = "sentencepiece") -> Path:
        """Where the vocabulary of a kind of tokenizer lies: "sentencepiece" or "subwords"."""
        return self.path / VOCABULARY_FILES[kind]

    def write_config(self, architecture: dict, tokenizer: str = "sentencepiece"):
        """Writes config.json; the vocabulary has to be there already.

        Args:
            architecture: `TransformerConfig.to_dict()`.
            tokenizer: the kind of the vocabulary; "none" for a model that takes and gives ids.
        """
        entry = {"kind": tokenizer}
        if tokenizer != "none":
            vocabulary = self.vocabulary_file(tokenizer)
            entry |= {"file": vocabulary.name, "sha256": _digest(vocabulary)}
        _write_json(
            self.config_file,
            {"format_version": FORMAT_VERSION, "architecture": architecture, "tokenizer": entry},
        )

    def read_config(self) -> dict:
        """What config.json holds.

        Returns:
            A dict with `format_version`, `architecture` (for `TransformerConfig.from_dict`) and
            `tokenizer` (`kind`, `file`, `sha256`).

        Raises:
            ValueError: where this is not a model directory, or one of a newer format.
        """
        if not self.is_configured:
            state = (
                "does not exist"
                if not self.path.exists()
                else "holds none"
                if self.path.is_dir()
                else "is a file"
            )
            raise ValueError(
                f"Expected a model directory, which holds a config.json. Received: {self.path}, "
                f"which {state}. "
                "Make one with `python -m trainer.train --model_dir=...`, or give the path of one "
                "that exists."
            )
        config = _read_json(self.config_file)
        version = config.get("format_version")
        if version != FORMAT_VERSION:
            is_newer = isinstance(version, int) and version > FORMAT_VERSION
            raise ValueError(
                f"Expected a model directory of format version {FORMAT_VERSION}. Received: "
                f"{self.path}, of version {version}, which {'a newer' if is_newer else 'an older'} "
                "version of this program wrote. Read it with that version, or train again."
            )
        missing = {"architecture", "tokenizer"} - config.keys()
        if missing:
            raise ValueError(
                f"Expected {self.config_file} to hold architecture and tokenizer. Received: one "
                "without "
                f"{' and '.join(sorted(missing))}. Restore the file, or train in another "
                "--model_dir."
            )
        return config

    def check_architecture(self, architecture: dict):
        """Checks that the directory was made for an architecture.

        Raises:
            ValueError: naming every setting that differs, with both values.
        """
        recorded = self.read_config()["architecture"]
        self.check_same(recorded, architecture, "configuration")

    def check_same(self, recorded: dict, asked: dict, what: str):
        """Checks that settings are those that the directory was made with.

        Args:
            recorded: the directory's settings.
            asked: this run's.
            what: owner of the settings, for the message.

        Raises:
            ValueError: naming every setting that differs, with both values.
        """
        differing = [
            f"{name} is {_shown(recorded, name)} there and {_shown(asked, name)} in this run"
            for name in dict.fromkeys([*recorded, *asked])
            if _shown(recorded, name) != _shown(asked, name)
        ]
        if differing:
            raise ValueError(
                f"Expected a model directory made with the {what} of this run. Received: "
                f"{self.path}, where "
                f"{'; '.join(differing)}. Give the settings that the directory was made with, or "
                "another --model_dir."
            )

    def load_tokenizer(self):
        """The tokenizer of the directory.

        Raises:
            ValueError: where the vocabulary is missing, or is not the one that the model was made
                with.
        """
        tokenizer = self.read_config()["tokenizer"]
        if tokenizer["kind"] == "none":
            raise ValueError(
                f"Expected a model with a vocabulary. Received: {self.path}, which was imported "
                "without one. "
                "Import it again with --vocab."
            )
        vocabulary = self.path / tokenizer["file"]
        if not vocabulary.is_file():
            raise ValueError(
                f"Expected the vocabulary of the model at {vocabulary}. Received: a directory "
                "without it. "
                "Restore the file, or train in another --model_dir."
            )
        if _digest(vocabulary) != tokenizer["sha256"]:
            raise ValueError(
                f"Expected the vocabulary that the model was made with. Received: {vocabulary}, "
                "which has changed since: "
                "its SHA-256 is not the one in config.json. Restore the file, or train in another "
                "--model_dir."
            )
        if tokenizer["kind"] == "sentencepiece":
            from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer

            return SentencePieceTokenizer.from_file(vocabulary)
        if tokenizer["kind"] == "subwords":
            from trainer.data.subword_tokenizer import SubwordTokenizer

            return SubwordTokenizer.from_file(vocabulary)
        raise ValueError(
            f"Expected a tokenizer of the kind {' or '.join(VOCABULARY_FILES)}. "
            f"Received: {tokenizer['kind']!r} in {self.config_file}."
        )

    def save_model(self, model):
        """Writes the Transformer to model.keras, whole or not at all; to compute in float32,
        whatever it was trained in.
        """
        with atomic_files.whole_file(self.model_file) as aside:
            _in_float32(model).save(aside)

    def has_intact_model(self) -> bool:
        """Whether model.keras exists and the checksums of its ZIP archive are right."""
        try:
            with zipfile.ZipFile(self.model_file) as archive:
                return archive.testzip() is None
        except (OSError, zipfile.BadZipFile):
            return False

    def load_model(self):
        """The Transformer of model.keras.

        Raises:
            ValueError: where training has not written one yet, or where it can't be read.
        """
        self.read_config()
        if not self.model_file.is_file():
            raise ValueError(
                f"Expected a trained model at {self.model_file}. Received: a directory without "
                "it: training has not "
                "reached its first checkpoint. Continue training with the same `python -m "
                "trainer.train` command."
            )
        import keras

        import t2t_relpos.models  # noqa: F401  (registers the Transformer with keras)

        try:
            return keras.models.load_model(self.model_file)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"Expected a readable Keras model. Received: {self.model_file}, which fails to "
                f"load ({error}). "
                "Continue training with the same `python -m trainer.train` command to write it "
                "again."
            ) from error

    def write_run(self, settings: dict):
        """Writes the resolved settings of a run to run.json."""
        _write_json(self.run_file, settings)

    def read_run(self) -> dict:
        """The settings in run.json; empty if there is none."""
        return _read_json(self.run_file) if self.run_file.is_file() else {}


def _lock_file(descriptor, directory):
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(descriptor, 1000).decode(errors="replace").strip() or "another process"
        raise ValueError(
            "Expected a model directory in which no other process trains. Received: "
            f"{directory}, locked by {owner}. Wait until it ends, or choose another "
            "--model_dir."
        ) from error
    except OSError as error:
        # Some network file systems have no locks.
        logging.warning("%s can't be locked: %s", directory, error.strerror)


def _in_float32(model):
    if model.compute_dtype == "float32":
        return model
    copy = type(model).from_config(model.get_config() | {"dtype": "float32"})
    copy.set_weights(model.get_weights())
    return copy


def _shown(settings, name):
    return "not set" if settings.get(name) is None else json.dumps(settings[name])


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write_json(path, content):
    atomic_files.write_text(path, json.dumps(content, indent=2) + "\n")


def _read_json(path):
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"Expected a JSON file. Received: {path}, which is not one ({error}). "
            "Restore the file, or train in another --model_dir."
        ) from error
    if not isinstance(content, dict):
        raise ValueError(
            f"Expected a JSON object. Received: {path}, which holds a {type(content).__name__}. "
            "Restore the file."
        )
    return content
