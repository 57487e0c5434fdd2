"""Tests of the import of tensor2tensor's checkpoints into model directories."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from comparisons import assert_all_equal
from model_directories import (
    import_random_model,
    subword_vocabulary,
    write_random_checkpoint,
)
from programs import Program

from t2t_relpos.models import CausalLM, Transformer
from trainer import import_t2t
from trainer.import_t2t import (
    find_checkpoint,
    import_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from trainer.model_dir import ModelDirectory
from trainer.serving.translation_module import TranslationModule, TranslationSettings

RECORDED = Path(__file__).parents[1] / "reference/models"
SMALL = "hidden_size=24,filter_size=40,num_heads=4,num_hidden_layers=2"
SHORT_K = f"{SMALL},max_relative_position=3,relu_dropout=0.25"
V2 = f"{SMALL},max_relative_position=5"
TINY, LMX = "transformer_relative_tiny", "lmx_relative"
# Sizes of a model, and how the program is called.
ONE_LAYER = "hidden_size=8,filter_size=12,num_heads=2,num_hidden_layers=1"

run = Program(import_t2t)


def prefix(case):
    return str(next((RECORDED / case).glob("*.index")).with_suffix(""))


@pytest.mark.parametrize(
    "case",
    ["relative_adam_slots", "language_16_layers", "language_bfloat16", "language_v2_long_k"],
)
def test_logits_equal_tensor2tensor(case, tmp_path):
    recorded = json.loads((RECORDED / case / "model.json").read_text())
    hparams = ",".join(f"{key}={value}" for key, value in recorded["overrides"].items())
    flags = {"checkpoint": RECORDED / case, "hparams_set": recorded["hparams_set"]}
    flags |= {"vocab_size": recorded["vocab_size"], "model_dir": tmp_path / "model"}
    run(**flags, hparams=hparams)
    model = ModelDirectory.open(tmp_path / "model").load_model()
    forward = np.load(RECORDED / case / "forward.npz")
    inputs = forward["targets"]
    if "inputs" in forward:
        inputs = {"inputs": forward["inputs"], "targets": inputs}
    atol = 1e-5 * np.abs(forward["logits"]).max()
    np.testing.assert_allclose(model(inputs), forward["logits"], atol=atol)


def test_write_checkpoint_inverts_import_checkpoint(tmp_path):
    original = prefix("relative_short_k")
    settings = {"hparams_set": TINY, "hparams": SHORT_K, "vocab_size": 37}
    config = import_checkpoint(original, str(tmp_path / "model"), **settings)
    settings = config.activation_dropout, config.max_relative_position, config.target_space_id
    assert settings == (0.25, 3, 0)
    write_checkpoint(ModelDirectory.open(tmp_path / "model").load_model(), str(tmp_path / "back"))
    original, back = read_checkpoint(original), read_checkpoint(str(tmp_path / "back"))
    assert back.keys() == original.keys()
    for name in original.keys() - {"global_step"}:
        np.testing.assert_array_equal(back[name], original[name])


LM = {"language_model": True}
PER_HEAD = f"{SMALL},heads_share_relative_embedding=false"
# The hparams set, hparams of the checkpoint and of the import, and other settings of the model.
KINDS = {
    "two vocabularies": (TINY, ONE_LAYER, ONE_LAYER, {"source_vocab_size": 23}),
    "timing": ("transformer_tpu", SMALL, SMALL, LM),
    "unshared": ("t_rel_len2048_dropout15_tiny", V2, V2, LM),
    # The checkpoint says what the hparams leave out.
    "K of the tables": (LMX, V2, SMALL, LM),
    "K of tables per head": (LMX, f"{PER_HEAD},max_relative_position=5", PER_HEAD, LM),
}


@pytest.mark.parametrize("kind", KINDS)
def test_import_of_ids_of_each_kind_of_model(kind, tmp_path, capsys):
    hparams_set, written, given, settings = KINDS[kind]
    original = write_random_checkpoint(
        tmp_path / "model.ckpt-7", hparams_set, written, 37, **settings
    )
    flags = {"checkpoint": tmp_path, "vocab_size": 37, "model_dir": tmp_path / "model"}
    run(**flags, hparams_set=hparams_set, hparams=given)
    printed, is_language_model = capsys.readouterr().out, settings is LM
    name = "language_model" if is_language_model else "translation"
    assert f"(model: {name}): TransformerConfig(" in printed
    assert ("target_space_id = 0 (the default" in printed) == (not is_language_model)
    line = "max_relative_position = 5 (the length of the checkpoint's tables)\n"
    assert (line in printed) == kind.startswith("K ")
    directory = ModelDirectory.open(tmp_path / "model", name)
    model = directory.load_model()
    assert type(model) is (CausalLM if is_language_model else Transformer)
    assert model.config == original.config
    assert model.config.source_vocab_size == settings.get("source_vocab_size")
    assert_all_equal(model.weights, original.weights)
    ids = np.random.default_rng(1).integers(2, 23, (2, 9))
    inputs = ids if is_language_model else {"inputs": ids[:, :5], "targets": ids}
    np.testing.assert_allclose(model(inputs), original(inputs), atol=1e-5)
    config = json.loads(directory.config_file.read_text())
    assert (config["model"], config["tokenizer"]) == (name, {"kind": "none"})
    num_heads = original.config.num_heads
    assert directory.read_run()["t2t_hparams"]["num_heads"] == num_heads


@pytest.mark.parametrize(
    ("hparams_set", "settings", "warmup_steps"), [(TINY, {}, 8000), (LMX, LM, 10_000)]
)
def test_imported_model_is_trained(hparams_set, settings, warmup_steps, small_run, tmp_path):
    hparams = f"{ONE_LAYER},max_relative_position=5,relu_dropout=0.25"
    imported = import_random_model(
        tmp_path, hparams, ["the_", "dog_"], hparams_set=hparams_set, **settings
    )
    (tmp_path / "text").write_text("the dog\nthe the dog\n")
    names = ("train_text", "dev_text") if settings else ("train_source", "train_target")
    text = dict.fromkeys(small_run.text) | dict.fromkeys(names, str(tmp_path / "text"))
    given = {"preset": None, "vocab_size": None, "init_from": str(imported), "train_steps": 2}
    small_run(tmp_path / "tuned", **text | given | {"batch_tokens": 50})
    parent, tuned = (ModelDirectory.open(x) for x in (imported, tmp_path / "tuned"))
    assert tuned.tokenizer_kind == "subwords" and tuned.kind == parent.kind
    assert tuned.read_config()["architecture"] == parent.read_config()["architecture"]
    assert tuned.read_config()["architecture"]["activation_dropout"] == 0.25
    assert tuned.read_run()["warmup_steps"] == warmup_steps
    before, after = (x.load_model().get_weights() for x in (parent, tuned))
    assert any((one != other).any() for one, other in zip(before, after, strict=True))


def test_program_imports_a_checkpoint_once(tmp_path, capsys):
    flags = {"checkpoint": RECORDED / "relative_short_k", "hparams_set": TINY, "hparams": SHORT_K}
    flags |= {"vocab_size": 37, "model_dir": tmp_path / "model"}
    run(**flags)
    printed = capsys.readouterr().out
    newest = f"Newest checkpoint of {RECORDED / 'relative_short_k'}: "
    assert printed.startswith(newest + prefix("relative_short_k"))
    assert "target_space_id = 0 (the default; check it)\n" in printed
    assert f"Wrote {tmp_path / 'model'}\n" in printed
    run.fails("Expected a --model_dir that holds no model yet", **flags)


@pytest.mark.parametrize(
    ("case", "flags", "message"),
    [
        (
            TINY,
            {"hparams": f"{SMALL},max_relative_position=4"},
            r"[\s\S]*wrong shape: .*relative_positions_keys.*expected \[9, 6\], received \[7, 6\] "
            r"\(check .*max_relative_position",
        ),
        (
            TINY,
            {"hparams": SHORT_K + ",num_decoder_layers=1"},
            r"[\s\S]*unexpected: .*decoder/layer_1/.*num_hidden_layers",
        ),
        (
            TINY,
            {"hparams": SHORT_K + ",num_decoder_layers=3"},
            r"[\s\S]*missing: .*decoder/layer_2/.*num_hidden_layers",
        ),
        (TINY, {"vocab_size": 38}, r"[\s\S]*symbol_modality_38_24/shared.*check the vocabulary"),
        (
            TINY,
            {"hparams_set": "transformer_tiny"},
            r"[\s\S]*unexpected: .*relative_positions_keys.*self_attention_type",
        ),
        (TINY, {"hparams_set": "transformer_relativ"}, "Expected one of the hparams sets .*Did"),
        (TINY, {"hparams": "ffn_layer=conv_hidden_relu"}, "Expected ffn_layer to be 'dense_relu_d"),
        (TINY, {"vocab_size": None}, "Expected either --vocab or --vocab_size. Received: neither"),
        (
            TINY,
            {"source_vocab": "vocab"},
            "Expected --vocab, the vocabulary of the targets, with --source_vocab. Received: "
            "--vocab_size.",
        ),
        (TINY, {"language_model": "true"}, "Expected a checkpoint of a model without encoder"),
        (LMX, {"language_model": "false"}, "Expected a checkpoint of a model with an encoder,"),
        (
            LMX,
            {"hparams": f"{SMALL},max_relative_position=4"},
            r"[\s\S]*wrong shape: .*relative_v2",
        ),
        (LMX, {"hparams": f"{V2},weight_dtype=float16"}, "Expected weight_dtype to be 'float32'"),
        (LMX, {"hparams": f"{V2},factored_logits=true"}, "Expected factored_logits to be False"),
        (LMX, {"vocab_size": 36}, r"[\s\S]*symbol_modality_36_24/softmax.*check the vocabulary"),
        (LMX, {"hparams_set": "transformer_tpu"}, r"[\s\S]*unexpected: .*relative_v2/key_relative"),
        (
            LMX,
            {"vocab_size": None, "vocab": "vocab", "source_vocab": "vocab"},
            "Expected no --source_vocab with a language model, which has no inputs.",
        ),
    ],
)
def test_mismatched_checkpoint_raises_and_writes_no_files(
    case, flags, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write_vocabulary(tmp_path / "vocab", ["the_"])
    given = {"hparams_set": case, "vocab_size": 37, "model_dir": "model"}
    if case == TINY:
        given |= {"checkpoint": prefix("relative_short_k"), "hparams": SHORT_K}
    else:
        write_random_checkpoint("model.ckpt-7", LMX, V2, 37, **LM)
        given |= {"checkpoint": ".", "hparams": V2}
    flags = given | flags
    run.fails(message, **{name: value for name, value in flags.items() if value is not None})
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("names", "state", "newest"),
    [
        (["model.ckpt-300", "model.ckpt-1000"], None, "model.ckpt-1000"),
        # The paths are those of another machine.
        (["model.ckpt-300", "model.ckpt-1000"], "/gone/model.ckpt-300", "model.ckpt-300"),
        (["model.ckpt-300", "model.ckpt-1000"], "model.ckpt-2000", "model.ckpt-1000"),
        (["averaged.ckpt-0"], None, "averaged.ckpt-0"),
    ],
)
def test_newest_checkpoint_of_a_directory(tmp_path, names, state, newest):
    for name in names:
        for ending in ("index", "meta", "data-00000-of-00001"):
            (tmp_path / f"{name}.{ending}").touch()
    paths = [str(tmp_path)]
    if state is not None:
        (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{state}"\n')
        paths.append(str(tmp_path / "checkpoint"))
    for path in paths:
        assert find_checkpoint(path) == str(tmp_path / newest)
    assert find_checkpoint(str(tmp_path / "model.ckpt-7")) == str(tmp_path / "model.ckpt-7")


def test_missing_or_unreadable_checkpoint_raises(tmp_path):
    with pytest.raises(ValueError, match="a directory with TF1 checkpoints, .* which has none"):
        find_checkpoint(str(tmp_path))
    message = "Expected the prefix of a TF1 checkpoint.*Leave out the file extension"
    with pytest.raises(ValueError, match=message):
        read_checkpoint(prefix("relative_short_k") + ".index")
    (tmp_path / "text.index").write_text("no checkpoint")
    for file in (RECORDED / "relative_short_k").glob("model.ckpt*"):
        shutil.copy(file, tmp_path)
    data = next(tmp_path.glob("*.data-*"))
    data.write_bytes(data.read_bytes()[:-1000])
    for index in tmp_path.glob("*.index"):
        message = f"Expected a readable TF1 checkpoint.*{index.stem}'.* truncated"
        with pytest.raises(ValueError, match=message):
            read_checkpoint(str(index.with_suffix("")))


# Words of the vocabularies of inputs and targets.
UNLIKE_SIZES = (["the_", "dog_"], ["der_", "und_"])
EQUAL_SIZES = (["rend_", "end_"], ["der_", "und_"])


def write_vocabulary(file, words):
    """Writes a vocabulary of words and single letters. Returns its number of ids."""
    file.write_text(text := subword_vocabulary(words))
    return text.count("\n")


@pytest.fixture
def write_two_vocabularies(tmp_path):
    """Returns a function of two lists of words that writes a checkpoint and its vocabularies.

    It returns flags of the program, and the sizes of the vocabularies.
    """

    def write(words):
        files = tmp_path / "inputs", tmp_path / "targets"
        sizes = source_size, size = tuple(map(write_vocabulary, files, words))
        flags = {"checkpoint": tmp_path / "model.ckpt-1", "model_dir": tmp_path / "model"}
        flags |= {"hparams_set": TINY, "hparams": ONE_LAYER}
        write_random_checkpoint(
            flags["checkpoint"], TINY, ONE_LAYER, size, source_vocab_size=source_size
        )
        return flags | dict(zip(("source_vocab", "vocab"), files)), sizes

    return write


@pytest.fixture
def eager_functions():
    """Runs functions of TensorFlow without graphs, which take longer to make than to run."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.parametrize("words", [UNLIKE_SIZES, EQUAL_SIZES])
def test_two_vocabulary_files(write_two_vocabularies, words, eager_functions, eager_searches):
    flags, sizes = write_two_vocabularies(words)
    assert (sizes[0] == sizes[1]) == (words == EQUAL_SIZES)
    run(**flags)
    directory = ModelDirectory.open(flags["model_dir"])
    names = [path.name for path in directory.vocabulary_files]
    assert names == ["vocab.source.subwords", "vocab.target.subwords"]
    tokenizers = directory.load_tokenizers()
    for path, flag, each, (word, _) in zip(
        directory.vocabulary_files, ("source_vocab", "vocab"), tokenizers, words
    ):
        assert path.read_bytes() == flags[flag].read_bytes()
        assert each.tokenize([word.removesuffix("_")]).to_list() == [[2, 1]]
    if words == EQUAL_SIZES:
        return
    text = [" ".join(words[0]).replace("_", "")]
    settings = TranslationSettings(extra_length=7)
    module = TranslationModule.from_model_dir(directory.path, settings)
    model, ids = directory.load_model(), tokenizers.source.tokenize(text).to_tensor()
    np.testing.assert_array_equal(ids, [[2, 3, 1]])
    expected = model.generate(ids, max_length=3 + 7, jit_compile=False)
    translations = module.serve(tf.constant(text))["translations"]
    np.testing.assert_array_equal(translations, tokenizers.target.detokenize(expected))


def test_vocabulary_that_does_not_fit_the_inputs_raises(write_two_vocabularies, tmp_path):
    flags, (source_size, size) = write_two_vocabularies(UNLIKE_SIZES)
    message = f"Expected a vocabulary of the inputs of {source_size} ids, as in the checkpoint. "
    others = flags | {"source_vocab": tmp_path / "other"}
    other = write_vocabulary(tmp_path / "other", ["many_", "words_"])
    run.fails(f"{message}Received: one of {other} ids. Give its file with --source_", **others)
    del others["source_vocab"]
    run.fails(f"{message}Received: one of {size} ids. Give its file with --source_vocab", **others)
    assert not (tmp_path / "model").exists()


def test_one_vocabulary_is_the_default_for_equal_sizes(write_two_vocabularies):
    flags, _ = write_two_vocabularies(EQUAL_SIZES)
    del flags["source_vocab"]
    run(**flags)
    assert ModelDirectory.open(flags["model_dir"]).load_tokenizers().is_shared
