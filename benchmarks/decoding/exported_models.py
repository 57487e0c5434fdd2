"""Exports one model for every system of the decoding benchmark."""

from pathlib import Path

from benchmarks.decoding import models
from trainer.serving.translation_settings import TranslationSettings

ALPHA = 0.6
# OpenNMT-tf's default maximum length. A trained model ends its translations earlier.
MAX_LENGTH = 250


class ExportedModels:
    """One model, exported for every system at its first use.

    Args:
        model_dir: the model directory.
        folder: where exported models are written.
        opennmt_python: Python of an environment with OpenNMT-tf, or None.
        length: ids of each sentence and translation for random weights, or None.
    """

    def __init__(self, model_dir: Path, folder: Path, opennmt_python, length: int | None):
        self.model_dir, self.folder, self.paths = model_dir, folder, {}
        self.opennmt_python, self.length = opennmt_python, length

    def worker_settings(self, system: str, beam_size: int, threads: int) -> dict:
        """Returns the settings of a system's worker."""
        max_length = self.length or MAX_LENGTH
        common = {"threads": threads, "beam_size": beam_size, "max_length": max_length}
        if system == "opennmt":
            vocabulary = str(self.model_dir / "vocab.model")
            path = self._export_for_opennmt(beam_size, max_length)
            return common | {"kind": "opennmt", "path": path, "vocabulary": vocabulary}
        if system.startswith("ctranslate2"):
            quantization = "int8" if system.endswith("int8") else "none"
            path = self._export(system, models.write_for_ctranslate2, quantization)
            # Both length penalties are similar near a length of 15.
            penalty = ALPHA * 15 / (5 + 15)
            return common | {"kind": "ctranslate2", "path": path, "length_penalty": penalty}
        options = system.split()
        settings = TranslationSettings(
            beam_size,
            ALPHA,
            extra_length=0 if self.length else 50,
            early_stopping="early" in options,
            jit_compile="compiled" in options,
        )
        precision = "bfloat16" if "bfloat16" in options else "float32"
        path = self._export(f"{system} {beam_size}", models.write_saved_model, settings, precision)
        return common | {"kind": "saved_model", "path": path}

    def _export(self, name, write, *args):
        if name not in self.paths:
            folder = self.folder / name.replace(" ", "_")
            self.paths[name] = write(self.model_dir, folder, *args)
        return self.paths[name]

    def _export_for_opennmt(self, beam_size, max_length):
        weights = self._export("opennmt", models.write_for_opennmt, ALPHA)
        key = "opennmt", beam_size
        if key not in self.paths:
            self.paths[key] = models.build_opennmt(
                self.opennmt_python, weights, beam_size, max_length
            )
        return self.paths[key]
