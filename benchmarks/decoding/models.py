"""Creates the model of the decoding benchmark, and exports it for every system."""

import dataclasses
import gzip
import json
import subprocess
from pathlib import Path

import keras
import numpy as np

from benchmarks.workers import child_environment
from t2t_relpos.models import Transformer, TransformerConfig
from trainer import export_ctranslate2
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.data.tokenizer import EOS_ID
from trainer.export import export
from trainer.model_dir import ModelDirectory
from trainer.serving.signatures import TranslationModule
from trainer.serving.translation_settings import TranslationSettings

ALPHA = 0.6
# OpenNMT-tf's default maximum length.
MAX_LENGTH = 250


def read_lines(path: str) -> list[str]:
    """Returns the non-empty lines of a text file, which may be compressed (.gz)."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def create_random_model(directory: Path, preset: str, texts: list[str], vocab_size: int) -> Path:
    """Creates a model directory with random weights, which never predict EOS. Returns its path.

    All heads of a layer share one table.

    Args:
        directory: the directory to create.
        preset: the architecture.
        texts: lines of text to train the vocabulary on.
        vocab_size: size of the vocabulary.
    """
    model_dir = ModelDirectory.create(directory)
    tokenizer = SentencePieceTokenizer.train(texts, vocab_size)
    tokenizer.save(model_dir.vocabulary_file())
    config = TransformerConfig.from_preset(preset, vocab_size=vocab_size, share_heads=True)
    keras.utils.set_random_seed(1)
    model = Transformer(config)
    # The logit of EOS becomes 0, which is far below the maximum of thousands of random logits.
    for embedding in {model.target_embedding, model.output_embedding}:
        table = keras.ops.convert_to_numpy(embedding.embeddings).copy()
        table[EOS_ID] = 0
        embedding.embeddings.assign(table)
    model_dir.save_model(model)
    model_dir.write_config(config.to_dict())
    return directory


def cut_sentences(directory: Path, texts: list[str], length: int, count: int) -> list[str]:
    """Returns sentences that are cut to `length` ids, including EOS.

    Args:
        directory: the model directory, whose vocabulary is used.
        texts: lines of text; short ones are skipped.
        length: ids of each sentence.
        count: number of sentences.

    Raises:
        ValueError: if the text has too few sentences that are long enough.
    """
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(ModelDirectory(directory).vocabulary_file())
    )
    found = []
    for text in texts:
        ids = processor.encode(text)[: length - 1]
        sentence = processor.decode(ids)
        if len(ids) == length - 1 and processor.encode(sentence) == ids:
            found.append(sentence)
        if len(found) == count:
            return found
    raise ValueError(
        f"Expected {count} sentences of at least {length} ids. Received: {len(found)}. "
        "Pass more text or a smaller --sentences."
    )


@dataclasses.dataclass(frozen=True)
class Exporter:
    """Exports a model for the systems.

    Args:
        model_dir: the model directory.
        beam_size: beam size of the searches.
        length: ids of each translation for random weights. None for a trained model, which ends
            its translations itself.
        opennmt_python: Python of an environment with OpenNMT-tf, or None.
    """

    model_dir: Path
    beam_size: int
    length: int | None
    opennmt_python: str | None

    @property
    def max_length(self):
        return self.length or MAX_LENGTH

    def export(self, system: str, folder: Path) -> dict:
        """Writes the model of a system to a folder. Returns the settings of its worker."""
        if system == "opennmt":
            return self._for_opennmt(folder)
        if system.startswith("ctranslate2"):
            return self._for_ctranslate2(folder, "int8" if system.endswith("int8") else "none")
        options = system.split()
        settings = TranslationSettings(
            self.beam_size,
            ALPHA,
            extra_length=0 if self.length else 50,
            early_stopping="early" in options,
            jit_compile="compiled" in options,
        )
        precision = "bfloat16" if "bfloat16" in options else "float32"
        module = TranslationModule.from_model_dir(self.model_dir, settings, precision)
        return {"kind": "saved_model", "path": str(export(module, folder))}

    def _for_ctranslate2(self, folder, quantization):
        export_ctranslate2.export(self.model_dir, folder, quantization)
        settings = {"kind": "ctranslate2", "path": str(folder), "beam_size": self.beam_size}
        # Both length penalties are similar near a length of 15.
        penalty = ALPHA * 15 / (5 + 15)
        return settings | {"max_length": self.max_length, "length_penalty": penalty}

    def _for_opennmt(self, folder):
        """Builds OpenNMT-tf's SavedModel in its own environment."""
        write_for_opennmt(self.model_dir, folder, ALPHA)
        path = str(folder / "saved_model")
        arguments = map(str, (folder, self.beam_size, self.max_length, path))
        done = subprocess.run(
            [self.opennmt_python, "-m", "benchmarks.decoding.opennmt_model", *arguments],
            capture_output=True,
            text=True,
            env=child_environment(),
        )
        if done.returncode:
            raise RuntimeError(f"Building OpenNMT-tf's model failed:\n{done.stderr[-3000:]}")
        vocabulary = str(self.model_dir / "vocab.model")
        return {"kind": "opennmt", "path": path, "vocabulary": vocabulary}


def write_for_opennmt(model_dir: Path, folder: Path, alpha: float):
    """Writes weights, vocabulary and architecture for `opennmt_model`.

    Raises:
        ValueError: if OpenNMT-tf does not support the architecture.
    """
    directory = ModelDirectory.open(model_dir)
    model = directory.load_model()
    config = model.config
    supported = (
        (config.position == "relative" and config.share_heads)
        and (config.use_key_table and config.use_value_table)
        and (config.tie_embeddings and config.target_space_id is None)
    )
    if not supported:
        raise ValueError(
            "OpenNMT-tf requires relative positions, two tables per layer that all heads share, "
            f"and tied embeddings. Received: {config}. Remove opennmt from --systems."
        )
    folder.mkdir(parents=True)
    (folder / "architecture.json").write_text(json.dumps(config.to_dict() | {"alpha": alpha}))
    tokens = directory.token_names(config.vocab_size)[0][EOS_ID + 1 :]
    (folder / "tokens.txt").write_text("".join(f"{token}\n" for token in tokens))
    np.savez(folder / "weights.npz", **_collect_weights(model))


def _collect_weights(model):
    weights = {"embeddings": model.source_embedding.embeddings}
    for stack, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        for i, layer in enumerate(layers):
            weights |= _layer_weights(layer, f"{stack}/{i}")
    if model.config.normalize_first:
        weights |= _norm_weights("encoder", model.encoder_norm)
        weights |= _norm_weights("decoder", model.decoder_norm)
    return {name: keras.ops.convert_to_numpy(value) for name, value in weights.items()}


def _layer_weights(layer, prefix):
    weights = _norm_weights(f"{prefix}/self", layer.self_attention_residual.norm)
    weights |= _norm_weights(f"{prefix}/ffn", layer.feed_forward_residual.norm)
    attentions = {"self": layer.self_attention}
    if layer.cross_attention is not None:
        attentions["cross"] = layer.cross_attention
        weights |= _norm_weights(f"{prefix}/cross", layer.cross_attention_residual.norm)
    for name, attention in attentions.items():
        weights[f"{prefix}/{name}/queries"] = np.asarray(attention.query_dense.matrix)
        weights[f"{prefix}/{name}/keys"] = np.asarray(attention.key_dense.matrix)
        weights[f"{prefix}/{name}/values"] = np.asarray(attention.value_dense.matrix)
        weights[f"{prefix}/{name}/output"] = np.asarray(attention.output_dense.matrix)
    weights[f"{prefix}/self/key_table"] = layer.self_attention.key_embedding.table
    weights[f"{prefix}/self/value_table"] = layer.self_attention.value_embedding.table
    for name in ("inner", "outer"):
        dense = getattr(layer.feed_forward, name)
        weights |= {f"{prefix}/{name}/kernel": dense.kernel, f"{prefix}/{name}/bias": dense.bias}
    return weights


def _norm_weights(prefix, norm):
    return {f"{prefix}/gamma": norm.gamma, f"{prefix}/beta": norm.beta}
