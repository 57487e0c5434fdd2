"""Creates the model of the decoding benchmark, and exports it for every system."""

import gzip
from pathlib import Path

import keras

from t2t_relpos.models import Transformer, TransformerConfig
from trainer import export_ctranslate2
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.data.tokenizer import EOS_ID, Tokenizers
from trainer.export import export
from trainer.model_dir import ModelDirectory
from trainer.serving.translation_module import TranslationModule
from trainer.serving.translation_settings import TranslationSettings

ALPHA = 0.6
MAX_LENGTH = 250


def read_lines(path: str) -> list[str]:
    """Returns the non-empty lines of a text file, which may be compressed (.gz)."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def create_random_model(directory: Path, preset: str, texts: list[str], vocab_size: int) -> Path:
    """Creates a model directory with random weights, which never predict EOS. Returns its path.

    All heads of a layer share one table. The vocabulary is trained on `texts`.
    """
    model_dir = ModelDirectory.create(directory)
    tokenizers = Tokenizers.shared(SentencePieceTokenizer.train(texts, vocab_size))
    model_dir.save_tokenizers(tokenizers)
    config = TransformerConfig.from_preset(preset, vocab_size=vocab_size, share_heads=True)
    keras.utils.set_random_seed(1)
    model = Transformer(config)
    # The logit of EOS becomes 0, which is far below the maximum of thousands of random logits.
    for embedding in {model.target_embedding, model.output_embedding}:
        table = keras.ops.convert_to_numpy(embedding.embeddings).copy()
        table[EOS_ID] = 0
        embedding.embeddings.assign(table)
    model_dir.save_model(model)
    model_dir.write_config(config.to_dict(), tokenizers)
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


def export_model(model_dir: Path, system: str, folder: Path, *, beam_size, length):
    """Writes the model of a system to a folder. Returns the settings of its worker.

    Args:
        model_dir: the model directory.
        system: the system.
        folder: the folder.
        beam_size: beam size of the searches.
        length: ids of each translation for random weights. None for a trained model, which ends
            its translations itself.
    """
    kind, *options = system.split()
    if kind == "ctranslate2":
        export_ctranslate2.export(model_dir, folder, "int8" if options else "none")
        # Both length penalties are similar near a length of 15.
        settings = {"beam_size": beam_size, "length_penalty": ALPHA * 15 / (5 + 15)}
        settings["max_decoding_length"] = length or MAX_LENGTH
        return {"kind": kind, "path": str(folder), "options": settings}
    settings = TranslationSettings(
        beam_size,
        ALPHA,
        extra_length=0 if length else 50,
        early_stopping="early" in system,
    )
    precision = "bfloat16" if "bfloat16" in system else "float32"
    module = TranslationModule.from_model_dir(model_dir, settings, precision)
    return {"kind": "saved_model", "path": str(export(module, folder))}
