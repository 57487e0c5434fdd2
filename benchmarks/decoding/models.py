"""The models that benchmarks/decode.py measures: one Transformer, written for every peer."""

import gzip
import json
import subprocess
from pathlib import Path

import keras
import numpy as np

from t2t_relpos.models import Transformer, TransformerConfig
from trainer.data.token_names import token_names
from trainer.data.tokenizers import EOS_ID, SentencePieceTokenizer
from trainer.export import export
from trainer.model_dir import ModelDirectory
from trainer.serving import ctranslate2_model
from trainer.serving.module import TranslationModule
from trainer.serving.settings import TranslationSettings


def read_lines(path: str) -> list[str]:
    """Lines of a text, which is compressed where its name ends in .gz."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def random_model(
    directory: Path, preset: str, texts: list[str], vocab_size: int, **changes
) -> Path:
    """A model directory with drawn weights and a vocabulary learned from texts. Its sentences never end by themselves.

    Args:
        directory: to make.
        preset: the architecture.
        texts: lines of text.
        vocab_size: of the vocabulary.
        **changes: of the preset.
    """
    made = ModelDirectory.create(directory)
    tokenizer = SentencePieceTokenizer.train(texts, vocab_size)
    tokenizer.save(made.vocabulary_file())
    config = TransformerConfig.from_preset(preset, vocab_size=vocab_size, **changes)
    keras.utils.set_random_seed(1)
    model = Transformer(config)
    # An end of sentence has the logit 0, far below the best of thousands of others.
    for embedding in {model.target_embedding, model.output_embedding}:
        table = keras.ops.convert_to_numpy(embedding.embeddings).copy()
        table[EOS_ID] = 0
        embedding.embeddings.assign(table)
    made.save_model(model)
    made.write_config(config.to_dict())
    return directory


def sentences_of_length(directory: Path, texts: list[str], length: int, count: int) -> list[str]:
    """Beginnings of texts that have `length` ids, end of sentence included.

    Raises:
        ValueError: where there are fewer than `count`.
    """
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(
        model_file=str(ModelDirectory(directory).vocabulary_file())
    )
    found = []
    for text in texts:
        ids = pieces.encode(text)[: length - 1]
        beginning = pieces.decode(ids)
        if len(ids) == length - 1 and pieces.encode(beginning) == ids:
            found.append(beginning)
        if len(found) == count:
            return found
    raise ValueError(
        f"Expected {count} sentences of at least {length} ids. Received: {len(found)}. Give more text, or a smaller --length."
    )


def write_ours(model_dir: Path, folder: Path, settings: TranslationSettings) -> str:
    """Our SavedModel."""
    return str(export(TranslationModule.from_model_dir(model_dir, settings), folder))


def write_for_ctranslate2(model_dir: Path, folder: Path, quantization: str) -> str:
    """CTranslate2's model."""
    ctranslate2_model.write(model_dir, folder, quantization)
    return str(folder)


def write_for_opennmt(model_dir: Path, folder: Path, alpha: float):
    """Weights, vocabulary and architecture, as opennmt_model.py reads them.

    Raises:
        ValueError: for an architecture that OpenNMT-tf does not have.
    """
    directory = ModelDirectory.open(model_dir)
    model = directory.load_model()
    config = model.config
    tables = config.share_heads and config.use_key_table and config.use_value_table
    if not (
        config.position == "relative"
        and tables
        and config.tie_embeddings
        and config.target_space_id is None
    ):
        raise ValueError(
            "Expected relative positions, two tables a layer for all heads, and tied embeddings, as OpenNMT-tf has them. "
            f"Received: {config}. Leave it out of --peers."
        )
    folder.mkdir(parents=True)
    (folder / "architecture.json").write_text(json.dumps(config.to_dict() | {"alpha": alpha}))
    names = token_names(directory, config.vocab_size).names
    # Their own for padding, start and end of sentence.
    (folder / "vocabulary.txt").write_text(
        "\n".join(["<blank>", "<s>", "</s>", *names[EOS_ID + 1 :]]) + "\n"
    )
    np.savez(folder / "weights.npz", **_weights(model))


def _weights(model):
    weights = {"embeddings": model.source_embedding.embeddings}
    for stack, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        for i, layer in enumerate(layers):
            weights |= _layer_weights(layer, f"{stack}/{i}")
    if model.config.normalize_first:
        weights |= _norm("encoder", model.encoder_norm) | _norm("decoder", model.decoder_norm)
    return {name: keras.ops.convert_to_numpy(value) for name, value in weights.items()}


def _layer_weights(layer, prefix):
    weights = _norm(f"{prefix}/self", layer.self_attention_residual.norm)
    weights |= _norm(f"{prefix}/ffn", layer.feed_forward_residual.norm)
    attentions = {"self": layer.self_attention}
    if hasattr(layer, "cross_attention"):
        attentions["cross"] = layer.cross_attention
        weights |= _norm(f"{prefix}/cross", layer.cross_attention_residual.norm)
    for name, attention in attentions.items():
        denses = {
            "queries": attention.query_dense,
            "keys": attention.key_dense,
            "values": attention.value_dense,
        }
        for part, dense in (denses | {"output": attention.output_dense}).items():
            weights[f"{prefix}/{name}/{part}"] = dense.kernel
    weights[f"{prefix}/self/key_table"] = layer.self_attention.key_embedding.table
    weights[f"{prefix}/self/value_table"] = layer.self_attention.value_embedding.table
    for part in ("inner", "outer"):
        dense = getattr(layer.feed_forward, part)
        weights |= {f"{prefix}/{part}/kernel": dense.kernel, f"{prefix}/{part}/bias": dense.bias}
    return weights


def _norm(prefix, norm):
    return {f"{prefix}/gamma": norm.gamma, f"{prefix}/beta": norm.beta}


def build_opennmt(python: str, folder: Path, beam_size: int, max_length: int) -> str:
    """OpenNMT-tf's SavedModel, made in its own environment.

    Raises:
        RuntimeError: with what it printed, where that fails.
    """
    saved_model = folder / f"saved_model_{beam_size}"
    script = Path(__file__).with_name("opennmt_model.py")
    command = [python, str(script), str(folder), str(beam_size), str(max_length), str(saved_model)]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        raise RuntimeError(f"OpenNMT-tf's model could not be made:\n{made.stderr[-3000:]}")
    return str(saved_model)
