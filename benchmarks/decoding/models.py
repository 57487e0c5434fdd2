"""Creates the model of the decoding benchmark, and exports it for every system."""

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
from trainer.serving.translation_module import TranslationModule
from trainer.serving.translation_settings import TranslationSettings

ALPHA = 0.6
# OpenNMT-tf's default maximum length.
MAX_LENGTH = 250
# A bias that prevents the search from choosing a token.
NEVER_CHOSEN = -1e9


def read_lines(path: str) -> list[str]:
    """Returns the non-empty lines of a text file, which may be compressed (.gz)."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def create_random_model(directory: Path, preset: str, texts: list[str], vocab_size: int) -> Path:
    """Creates a model directory with random weights, which never predict EOS. Returns its path.

    All heads of a layer share one table. The vocabulary is trained on `texts`.
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
    """Returns `count` sentences that are cut to `length` ids, including EOS. Skips short ones."""
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
    if len(found) < count:
        raise ValueError(f"Expected {count} sentences of {length} ids. Received: {len(found)}.")
    return found[:count]


def export_model(model_dir: Path, system: str, folder: Path, *, beam_size, length, opennmt_python):
    """Writes the model of a system to a folder. Returns the settings of its worker.

    Args:
        model_dir: the model directory.
        system: the system.
        folder: the folder.
        beam_size: beam size of the searches.
        length: ids of each translation for random weights. None for a trained model, which ends
            its translations itself.
        opennmt_python: Python of an environment with OpenNMT-tf.
    """
    kind, *options = system.split()
    if kind == "ctranslate2":
        export_ctranslate2.export(model_dir, folder, "int8" if options else "none")
        # Both length penalties are similar near a length of 15.
        settings = {"beam_size": beam_size, "length_penalty": ALPHA * 15 / (5 + 15)}
        settings["max_decoding_length"] = length or MAX_LENGTH
        return {"kind": kind, "path": str(folder), "options": settings}
    if kind == "opennmt":
        write_for_opennmt(model_dir, folder)
        sizes = str(beam_size), str(length or MAX_LENGTH)
        command = [opennmt_python, "-m", "benchmarks.decoding.opennmt_model", str(folder), *sizes]
        subprocess.run(command, env=child_environment(), check=True)
        vocabulary = str(model_dir / "vocab.model")
        return {"kind": kind, "path": str(folder / "saved_model"), "vocabulary": vocabulary}
    settings = TranslationSettings(
        beam_size,
        ALPHA,
        extra_length=0 if length else 50,
        early_stopping="early" in system,
        jit_compile="compiled" in system,
    )
    precision = "bfloat16" if "bfloat16" in system else "float32"
    module = TranslationModule.from_model_dir(model_dir, settings, precision)
    return {"kind": "saved_model", "path": str(export(module, folder))}


def write_for_opennmt(model_dir: Path, folder: Path):
    """Writes weights, vocabulary and architecture for `opennmt_model`.

    Raises:
        ValueError: if OpenNMT-tf does not support the architecture.
    """
    directory = ModelDirectory.open(model_dir)
    model = directory.load_model()
    config = model.config
    if config.position != "relative" or not config.share_heads or not config.tie_embeddings:
        raise ValueError(
            "OpenNMT-tf requires relative positions, tables that all heads share, and tied "
            f"embeddings. Received: {config}. Remove opennmt from --systems."
        )
    folder.mkdir(parents=True)
    (folder / "architecture.json").write_text(json.dumps(config.to_dict() | {"alpha": ALPHA}))
    tokens = directory.token_names(config.vocab_size)[0][EOS_ID + 1 :]
    (folder / "tokens.txt").write_text("".join(f"{token}\n" for token in tokens))
    weights = {name: keras.ops.convert_to_numpy(x) for name, x in _opennmt_weights(model).items()}
    np.savez(folder / "weights.npz", **weights)


def _opennmt_weights(model):
    """Returns weights by their paths in OpenNMT-tf's model."""
    table = keras.ops.convert_to_numpy(model.source_embedding.embeddings)
    # OpenNMT-tf has a start token after padding, and an unknown token at the end.
    zeros = np.zeros_like(table[:1])
    bias = np.zeros(len(table) + 2, "float32")
    bias[[0, 1, -1]] = NEVER_CHOSEN
    weights = {"features_inputter.embedding": np.concatenate([zeros, zeros, table[EOS_ID:], zeros])}
    weights["decoder.output_layer.bias"] = bias
    norm = "input_layer_norm" if model.config.normalize_first else "output_layer_norm"
    for stack, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        for i, layer in enumerate(layers):
            parts = {"self_attention": (layer.self_attention, layer.self_attention_residual)}
            if layer.cross_attention is not None:
                parts["attention.0"] = layer.cross_attention, layer.cross_attention_residual
            parts["ffn"] = layer.feed_forward, layer.feed_forward_residual
            for name, (part, residual) in parts.items():
                path = f"{stack}.layers.{i}.{name}"
                weights |= _norm_weights(f"{path}.{norm}", residual.norm)
                weights |= _sublayer_weights(f"{path}.layer", part)
    if model.config.normalize_first:
        weights |= _norm_weights("encoder.layer_norm", model.encoder_norm)
        weights |= _norm_weights("decoder.layer_norm", model.decoder_norm)
    return weights


def _sublayer_weights(path, part):
    if hasattr(part, "inner"):
        return {
            f"{path}.{name}.{weight}": getattr(getattr(part, name), weight)
            for name in ("inner", "outer")
            for weight in ("kernel", "bias")
        }
    weights = {
        f"{path}.linear_queries.kernel": part.query_dense.matrix,
        f"{path}.linear_keys.kernel": part.key_dense.matrix,
        f"{path}.linear_values.kernel": part.value_dense.matrix,
        f"{path}.linear_output.kernel": part.output_dense.matrix,
    }
    if ".self_attention." in path:
        weights[f"{path}.relative_position_keys"] = part.key_embedding.table
        weights[f"{path}.relative_position_values"] = part.value_embedding.table
    return weights


def _norm_weights(path, norm):
    return {f"{path}.gamma": norm.gamma, f"{path}.beta": norm.beta}
