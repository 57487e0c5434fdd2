"""Records models that a version saved, which later versions have to load.

A checkout of that version has to be in PYTHONPATH. Writes the archive that the argument names:
small untrained or briefly trained models, and in `expected.npz` the ids that they decode and their
outputs.
"""

import dataclasses
import itertools
import json
import pathlib
import shutil
import tarfile
import tempfile

import keras
import numpy as np
import tensorflow as tf
from shared import FOLDER
from trainer.serving.signatures import TranslationModule

from t2t_relpos import layers
from t2t_relpos.models import PRESETS, CausalLM, Transformer
from t2t_relpos.t2t import config_from_hparams, parse_hparams
from trainer import recipes, train
from trainer.config import RunConfig
from trainer.export import export
from trainer.import_t2t import import_checkpoint, write_checkpoint
from trainer.model_dir import ModelDirectory
from trainer.serving.translation_settings import TranslationSettings

SIZES = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "hidden_dim": 8,
    "intermediate_dim": 12,
    "num_heads": 2,
    "max_relative_position": 3,
}
# Architectures of the trained models, as changes of the preset `tiny`.
ARCHITECTURES = {
    "relative": {},
    "untied": {"tie_embeddings": False, "share_heads": False},
    "post_norm": {"normalize_first": False, "position": "sinusoidal"},
    "float16": {},
}
# Updates of the trained models.
STEPS = {"float16": 20}
HPARAMS = (
    "hidden_size=8,num_heads=2,filter_size=12,num_hidden_layers=1,max_relative_position=3,"
    "shared_embedding_and_softmax_weights=True"
)
SUBTOKENS = ["<pad>", "<EOS>", *"<>EOSpadgmbcehinorstu_\\;0123456789", "the_", "man_", "dog_"]
SENTENCES = ["the dog sees a man", "a cat sees the tree and the dog", "bird"]
MAX_LENGTH = 12


def write_text(folder):
    """Writes the sentences and the translations of the trained models."""
    pairs = itertools.product(("dog", "cat", "bird"), ("man", "woman", "child", "tree"))
    source = [f"the {subject} sees a {other}" for subject, other in pairs]
    target = [line.replace("the", "der").replace("sees a", "sieht einen") for line in source]
    for name, lines in (("source.txt", source), ("target.txt", target)):
        (folder / name).write_text("\n".join(lines) + "\n")


def run_config(name, folder):
    """Returns the `RunConfig` of a trained model."""
    PRESETS["saved"] = PRESETS["tiny"] | SIZES | ARCHITECTURES[name]
    recipes.RECIPES["saved"] = recipes.RECIPES["tiny"] | {"warmup_steps": 5}
    return RunConfig(
        preset="saved",
        model_dir=str(folder / name),
        train_source=str(folder / "source.txt"),
        train_target=str(folder / "target.txt"),
        vocab_size=40,
        batch_tokens=60,
        train_steps=STEPS.get(name, 3),
        keep_checkpoints=1,
        precision="float16" if name == "float16" else "float32",
        jit_compile=False,
    )


def train_model(name, folder):
    """Trains a model, and removes what a resumed run does not need."""
    train.train(run_config(name, folder))
    for part in ("logs", "ids", ".lock"):
        path = folder / name / part
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if name != "float16":
        shutil.rmtree(folder / name / "checkpoints")
    run_file = folder / name / "run.json"
    run_file.write_text(run_file.read_text().replace(f"{folder}/", ""))


def import_subwords(folder):
    """Writes a model directory with t2t's subwords, imported from a checkpoint."""
    with tempfile.TemporaryDirectory() as temporary:
        vocabulary = pathlib.Path(temporary) / "vocab.subwords"
        vocabulary.write_text("".join(f"'{subtoken}'\n" for subtoken in SUBTOKENS))
        values = parse_hparams("transformer_relative_tiny", HPARAMS)
        prefix = f"{temporary}/model.ckpt-7"
        write_checkpoint(Transformer(config_from_hparams(values, len(SUBTOKENS), 0)), prefix)
        import_checkpoint(
            prefix,
            str(folder / "subwords"),
            hparams_set="transformer_relative_tiny",
            hparams=HPARAMS,
            vocab=str(vocabulary),
        )


def causal_lm():
    """Returns a language model."""
    sizes = {name: SIZES[name] for name in SIZES if "layers" not in name}
    return CausalLM(vocab_size=17, num_layers=1, **sizes, share_heads=False)


def model_of_all_layers():
    """Returns a functional model with every public layer that can be saved, and its inputs."""
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.normal(size=(2, 7, 8)).astype("float32"),
        "y": rng.normal(size=(2, 5, 8)).astype("float32"),
        "image": rng.normal(size=(2, 3, 4, 8)).astype("float32"),
        "ids": rng.integers(1, 11, (2, 7)).astype("int32"),
        "labels": rng.integers(-1, 3, (2, 7, 5)).astype("int32"),
    }
    inputs = {
        name: keras.Input(array.shape[1:], dtype=str(array.dtype), name=name)
        for name, array in arrays.items()
    }
    x, y, image = inputs["x"], inputs["y"], inputs["image"]
    relative = {"max_relative_position": 3}
    heads = {"num_heads": 2, "key_dim": 4, "name": None}
    block = {"intermediate_dim": 12, "num_heads": 2} | relative
    outputs = {
        "relative": layers.RelativeMultiHeadAttention(**heads, **relative, share_heads=False)(x, y),
        "gated": layers.RelativeMultiHeadAttention(**heads, use_gate=True, value_dim=3, **relative)(
            x, y, use_causal_mask=True
        ),
        "v2": layers.RelativeMultiHeadAttentionV2(**heads, **relative, use_value_table=True)(x, y),
        "2d": layers.RelativeMultiHeadAttention2D(**heads, **relative)(image, image),
        "local": layers.LocalRelativeMultiHeadAttention(**heads, block_length=2)(x, x),
        "relations": layers.RelationMultiHeadAttention(**heads, num_relations=3)(
            x, y, relations=inputs["labels"]
        ),
        "position_embedding": layers.RelativePositionEmbedding(3, 4)(x),
        "sinusoids": layers.SinusoidalPositionEncoding()(x),
        "learned_positions": layers.LearnedPositionEmbedding(max_length=9)(x),
        "tokens": layers.TokenEmbedding(vocab_size=11, hidden_dim=8)(inputs["ids"]),
        "feed_forward": layers.FeedForward(intermediate_dim=12)(x),
        "encoder": layers.TransformerEncoder(**block, dropout=0.1)(x),
        "decoder": layers.TransformerDecoder(**block, normalize_first=True)(x, y),
        "decoder_only": layers.TransformerDecoder(**block, share_heads=False)(x),
    }
    return keras.Model(inputs, outputs), arrays


def decode(model, ids):
    """Returns the ids that a model decodes. Fails if rounding errors could change them."""
    found = []
    for factor in (1.0, 1 + 1e-4):
        original = model.get_weights()
        rng = np.random.default_rng(1)
        model.set_weights(
            [
                w * (1 + (factor - 1) * rng.normal(size=w.shape)).astype(w.dtype)
                if np.issubdtype(w.dtype, np.floating)
                else w
                for w in original
            ]
        )
        found.append(model.generate(ids, "beam", max_length=MAX_LENGTH, jit_compile=False))
        model.set_weights(original)
    np.testing.assert_array_equal(*found)
    return found[0]


def record_directory(path):
    """Returns the inputs, the decoded ids and the logits of the model of a directory, by name."""
    directory = ModelDirectory.open(path)
    model = directory.load_model()
    ids = directory.load_tokenizer().tokenize(tf.constant(SENTENCES)).to_tensor().numpy()
    decoded = decode(model, ids)
    logits = np.asarray(model({"inputs": ids, "targets": decoded}))
    return {"inputs": ids, "decoded": decoded, "logits": logits}


def record_all(folder):
    """Writes all models, and their outputs, to a folder."""
    write_text(folder)
    for name in ARCHITECTURES:
        train_model(name, folder)
    record_outputs(folder)
    record_saved_model(folder)


def record_outputs(folder):
    """Writes the models that were not trained, and the outputs of all, to a folder."""
    keras.utils.set_random_seed(1)
    import_subwords(folder)
    expected = {}
    for name in (*ARCHITECTURES, "subwords"):
        recorded = record_directory(folder / name)
        expected |= {f"{name}/{key}": array for key, array in recorded.items()}
    language_model = causal_lm()
    language_model.save(folder / "causal_lm.keras")
    prompts = np.array([[5, 7, 9], [3, 0, 0]], "int32")
    decoded = decode(language_model, prompts)
    expected |= {"causal_lm/inputs": prompts, "causal_lm/decoded": decoded}
    expected["causal_lm/logits"] = np.asarray(language_model(decoded))
    model, arrays = model_of_all_layers()
    model.save(folder / "layers.keras")
    outputs = {name: np.asarray(output) for name, output in model(arrays).items()}
    expected |= {f"layers/inputs/{name}": array for name, array in arrays.items()}
    expected |= {f"layers/outputs/{name}": array for name, array in outputs.items()}
    np.savez_compressed(folder / "expected.npz", **expected)


def record_saved_model(folder):
    """Exports a model for `trainer.translate`, and records its translations."""
    settings = dataclasses.replace(TranslationSettings(), max_input_length=16, beam_size=2)
    module = TranslationModule.from_model_dir(folder / "relative", settings)
    version = export(module, folder / "saved_model", 1)
    loaded = tf.saved_model.load(str(version))
    results = loaded.signatures["serving_default"](tf.constant(SENTENCES))
    results = {name: value.numpy().tolist() for name, value in results.items()}
    texts = json.dumps({"sentences": SENTENCES, "results": results}, default=bytes.decode, indent=1)
    (folder / "saved_model.json").write_text(texts + "\n")


def write_archive(folder, archive_path):
    """Writes a folder as an archive, without the times and owners of its files."""

    def anonymous(entry):
        entry.mtime, entry.uname, entry.gname = 0, "", ""
        return entry

    with tarfile.open(archive_path, "w:xz", preset=9) as archive:
        archive.add(folder, arcname=".", filter=anonymous)


def record(archive_name):
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        record_all(folder)
        write_archive(folder, FOLDER / archive_name)
