"""Tests of the import of tensor2tensor's checkpoints into model directories."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from model_directories import import_random_model, subword_vocabulary
from programs import Program

from t2t_relpos.models import Transformer
from t2t_relpos.t2t import config_from_hparams, parse_hparams
from trainer import import_t2t, train
from trainer.config import RunConfig
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

run = Program(import_t2t)


def prefix(case):
    return str(next((RECORDED / case).glob("*.index")).with_suffix(""))


def import_case(directory, case="relative_short_k", hparams=SHORT_K, **others):
    settings = {"hparams_set": "transformer_relative_tiny", "vocab_size": 37} | others
    return import_checkpoint(prefix(case), str(directory), hparams=hparams, **settings)


def test_logits_equal_tensor2tensor(tmp_path):
    case = "relative_adam_slots"
    import_case(tmp_path / "model", case, f"{SMALL},max_relative_position=2")
    forward = np.load(RECORDED / case / "forward.npz")
    model = ModelDirectory.open(tmp_path / "model").load_model()
    logits = model({"inputs": forward["inputs"], "targets": forward["targets"]})
    atol = 1e-5 * np.abs(forward["logits"]).max()
    np.testing.assert_allclose(logits, forward["logits"], atol=atol)


def test_write_checkpoint_inverts_import_checkpoint(tmp_path):
    config = import_case(tmp_path / "model")
    settings = config.activation_dropout, config.max_relative_position, config.target_space_id
    assert settings == (0.25, 3, 0)
    write_checkpoint(ModelDirectory.open(tmp_path / "model").load_model(), str(tmp_path / "back"))
    back = read_checkpoint(str(tmp_path / "back"))
    original = read_checkpoint(prefix("relative_short_k"))
    assert back.keys() == original.keys()
    for name in original.keys() - {"global_step"}:
        np.testing.assert_array_equal(back[name], original[name])


@pytest.fixture
def imported(tmp_path):
    """Returns the path of an imported model with a vocabulary."""
    return import_random_model(tmp_path, SHORT_K, ["the_", "dog_"])


@pytest.mark.slow
def test_fine_tuning_uses_the_dropout_rates_of_the_import(imported, tmp_path):
    (tmp_path / "text").write_text("the dog\nthe the dog\n")
    text = dict.fromkeys(("train_source", "train_target"), str(tmp_path / "text"))
    settings = {"init_from": str(imported), "model_dir": str(tmp_path / "tuned")}
    train.train(RunConfig(**settings, train_steps=2, batch_tokens=50, **text))
    tuned = ModelDirectory.open(tmp_path / "tuned")
    assert tuned.tokenizer_kind == "subwords"
    assert tuned.read_config()["architecture"]["activation_dropout"] == 0.25
    assert tuned.read_run()["warmup_steps"] == 8000
    before = ModelDirectory.open(imported).load_model().get_weights()
    after = tuned.load_model().get_weights()
    assert any((one != other).any() for one, other in zip(before, after, strict=True))


def test_program_imports_a_checkpoint_once(tmp_path, capsys):
    arguments = {
        "checkpoint": RECORDED / "relative_short_k",
        "hparams_set": "transformer_relative_tiny",
        "hparams": SHORT_K,
        "vocab_size": 37,
        "model_dir": tmp_path / "model",
    }
    run(**arguments)
    printed = capsys.readouterr().out
    newest = f"Newest checkpoint of {RECORDED / 'relative_short_k'}: "
    assert printed.startswith(newest + prefix("relative_short_k"))
    assert "target_space_id = 0 (the default; check it)\n" in printed
    assert f"Wrote {tmp_path / 'model'}\n" in printed
    run.fails("Expected a --model_dir that holds no model yet", **arguments)


@pytest.mark.parametrize(
    "others, message",
    [
        (
            {"hparams": f"{SMALL},max_relative_position=4"},
            r"(?s)wrong shape: .*relative_positions_keys.*expected \[9, 6\], received \[7, 6\] "
            r"\(check .*max_relative_position",
        ),
        (
            {"hparams": SHORT_K + ",num_decoder_layers=1"},
            "(?s)unexpected: .*decoder/layer_1/.*num_hidden_layers",
        ),
        (
            {"hparams": SHORT_K + ",num_decoder_layers=3"},
            "(?s)missing: .*decoder/layer_2/.*num_hidden_layers",
        ),
        ({"vocab_size": 38}, "(?s)symbol_modality_38_24/shared.*check the vocabulary"),
        (
            {"hparams_set": "transformer_tiny"},
            "(?s)unexpected: .*relative_positions_keys.*self_attention_type",
        ),
        ({"hparams_set": "transformer_relativ"}, "Expected one of the hparams sets .*Did you"),
        ({"hparams": "ffn_layer=conv_hidden_relu"}, "Expected ffn_layer to be 'dense_relu_dense'"),
        ({"vocab_size": None}, "Expected either --vocab or --vocab_size. Received: neither"),
    ],
)
def test_mismatched_checkpoint_raises_and_writes_no_files(others, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        import_case(tmp_path / "model", **others)
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


def test_directory_without_a_checkpoint_raises(tmp_path):
    with pytest.raises(ValueError, match="a directory with TF1 checkpoints, .* which has none"):
        find_checkpoint(str(tmp_path))


def test_missing_or_unreadable_checkpoint_raises(tmp_path):
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


def test_two_vocabularies_are_found_in_the_variables(tmp_path):
    """As melody_conditioned_model_16: ids only, unlike vocabularies and numbers of layers.

    test_language_models.py imports a model of 16 layers.
    """
    changes = "hidden_size=8,filter_size=12,num_heads=2,symbol_modality_num_shards=1"
    changes += ",num_encoder_layers=1,num_decoder_layers=2"
    hparams = parse_hparams("transformer_relative_tiny", changes)
    config = config_from_hparams(hparams, 11, source_vocab_size=23)
    model = Transformer(config)
    write_checkpoint(model, str(tmp_path / "model.ckpt"), num_shards=1)
    others = {"hparams_set": "transformer_relative_tiny", "vocab_size": 11}
    others["hparams"] = changes
    found = import_checkpoint(str(tmp_path / "model.ckpt"), str(tmp_path / "model"), **others)
    assert found == config
    assert (found.source_vocab_size, found.vocab_size, found.tie_embeddings) == (23, 11, False)
    loaded = ModelDirectory.open(tmp_path / "model").load_model()
    batch = {"inputs": np.array([[22, 17, 1]]), "targets": np.array([[3, 10, 1]])}
    np.testing.assert_array_equal(loaded(batch), model(batch))


ONE_LAYER = "hidden_size=8,filter_size=12,num_heads=2,num_hidden_layers=1"
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
        hparams = parse_hparams("transformer_relative_tiny", ONE_LAYER)
        config = config_from_hparams(hparams, size, source_vocab_size=source_size)
        write_checkpoint(Transformer(config), str(tmp_path / "model.ckpt-1"))
        given = {"checkpoint": tmp_path / "model.ckpt-1", "model_dir": tmp_path / "model"}
        given |= {"hparams_set": "transformer_relative_tiny", "hparams": ONE_LAYER}
        return given | dict(zip(("source_vocab", "vocab"), files)), sizes

    return write


@pytest.mark.parametrize("words", [UNLIKE_SIZES, EQUAL_SIZES])
def test_two_vocabulary_files(write_two_vocabularies, words, eager_searches):
    given, sizes = write_two_vocabularies(words)
    assert (sizes[0] == sizes[1]) == (words == EQUAL_SIZES)
    run(**given)
    directory = ModelDirectory.open(given["model_dir"])
    names = [path.name for path in directory.vocabulary_files]
    assert names == ["vocab.source.subwords", "vocab.target.subwords"]
    tokenizers = directory.load_tokenizers()
    for path, flag, each, (word, _) in zip(
        directory.vocabulary_files, ("source_vocab", "vocab"), tokenizers, words
    ):
        assert path.read_bytes() == given[flag].read_bytes()
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
    given, (source_size, size) = write_two_vocabularies(UNLIKE_SIZES)
    message = f"Expected a vocabulary of the inputs of {source_size} ids, as in the checkpoint. "
    others = given | {"source_vocab": tmp_path / "other"}
    other = write_vocabulary(tmp_path / "other", ["many_", "words_"])
    run.fails(f"{message}Received: one of {other} ids. Give its file with --source_", **others)
    del others["source_vocab"]
    run.fails(f"{message}Received: one of {size} ids. Give its file with --source_vocab", **others)
    assert not (tmp_path / "model").exists()


def test_one_vocabulary_is_the_default_for_equal_sizes(write_two_vocabularies):
    given, _ = write_two_vocabularies(EQUAL_SIZES)
    del given["source_vocab"]
    run(**given)
    assert ModelDirectory.open(given["model_dir"]).load_tokenizers().is_shared


def test_source_vocabulary_without_that_of_the_targets_raises(tmp_path):
    message = "Expected --vocab, the vocabulary of the targets, with --source_vocab. Received: "
    with pytest.raises(ValueError, match=f"{message}--vocab_size."):
        import_case(tmp_path / "model", source_vocab="inputs")
