import dataclasses
import json
import re
import sys

import pytest
from absl import flags

from t2t_relpos.hparams_sets import SETS
from trainer.config import NORMALIZATIONS, POSITIONS, RunConfig, define_flags
from trainer.recipes import RECIPES
from trainer.serving.generation_settings import GenerationSettings
from trainer.serving.translation_settings import TranslationSettings

MINIMAL = {"preset": "tiny", "model_dir": "runs/x", "data": "any"}
LMX = (
    "attention_dropout_broadcast_dims=,layer_prepostprocess_dropout_broadcast_dims=,"
    "relu_dropout_broadcast_dims=,optimizer=adam,"
    "learning_rate_schedule=constant*linear_warmup*rsqrt_decay*rsqrt_hidden_size"
)
TEXT = {"data": None, "train_source": "x", "train_target": "y"}


def config(**changes):
    return RunConfig(**MINIMAL | changes)


def parsed(*arguments):
    values = flags.FlagValues()
    define_flags(values)
    values(["train", *arguments])
    return RunConfig.from_flags(values)


def test_flags_set_every_type():
    expected = {
        "preset": "tiny",
        "model_dir": "a b",
        "train_source": "s",
        "train_target": "t",
        "batch_tokens": 77,
        "dropout": 0.25,
        "strategy": "mirrored",
        "logical_devices": 3,
    }
    found = parsed("--deterministic", *(f"--{name}={value}" for name, value in expected.items()))
    assert found == RunConfig(**expected, deterministic=True)


def test_flags_have_defaults_and_help_of_the_fields():
    values = flags.FlagValues()
    define_flags(values)
    values(["train"])
    assert values["log_every"].value == 100 and values["warmup_steps"].value is None
    assert "Maximum length of a sentence in tokens" in values["max_length"].help
    assert parsed("--preset=tiny", "--model_dir=runs/x", "--data=any") == config()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("16", 16), ("0x10", 16), ("64,8", (64, 8)), (" 64, 8", (64, 8)), ("5,5", 5)],
)
def test_flag_of_distances_is_an_integer_or_a_pair(text, expected):
    given = parsed(*(f"--{k}={v}" for k, v in MINIMAL.items()), f"--max_relative_position={text}")
    assert given == config(max_relative_position=expected)


@pytest.mark.parametrize("text", ["", "64,8,1", "1,", "1.5,2", "(64, 8)"])
def test_flag_of_other_distances_raises(text):
    message = re.escape(f"Expected an integer, or two: LEFT,RIGHT. Received: {text!r}.")
    with pytest.raises(flags.IllegalFlagValueError, match=message):
        parsed(f"--max_relative_position={text}")


@pytest.mark.parametrize("distances", [None, 16, (64, 8)])
def test_settings_equal_their_dict(distances):
    resolved = config(dropout=0.3, max_relative_position=distances).resolve()
    assert RunConfig(**json.loads(json.dumps(resolved.to_dict()))) == resolved


def test_given_settings_override_the_recipe():
    resolved = config(preset="shaw_base", warmup_steps=7, precision="float16").resolve()
    assert (resolved.warmup_steps, resolved.dtype_policy) == (7, "mixed_float16")
    assert resolved.architecture_overrides() == {}
    changes = {"dropout": 0.0, "position": "relative+sinusoidal", "use_value_table": False}
    assert config(**changes).architecture_overrides() == changes


@pytest.mark.parametrize(
    ("preset", "given", "every", "minutes", "evaluate_every"),
    [
        ("tiny", {}, 500, None, 500),
        ("tiny", {"checkpoint_every": 70}, 70, None, 70),
        ("tiny", {"checkpoint_every": 70, "evaluate_every": 30}, 70, None, 30),
        ("tiny", {"checkpoint_minutes": 5.0}, None, 5.0, 500),
        ("tiny", {"checkpoint_minutes": 5.0, "checkpoint_every": 70}, 70, 5.0, 70),
        ("transformer_base", {"checkpoint_minutes": 5.0}, None, 5.0, 1000),
        ("shaw_base", {}, None, 10.0, 1000),
        ("shaw_base", {"checkpoint_every": 70}, 70, None, 70),
        ("shaw_base", {"evaluate_every": 30}, None, 10.0, 30),
    ],
)
def test_given_intervals_replace_those_of_the_recipe(preset, given, every, minutes, evaluate_every):
    resolved = config(preset=preset, **given).resolve()
    found = resolved.checkpoint_every, resolved.checkpoint_minutes, resolved.evaluate_every
    assert found == (every, minutes, evaluate_every)


@pytest.mark.parametrize(
    ("given", "computes"),
    [
        ({}, False),
        ({"keep_best": 0}, False),
        ({"dev_bleu": True}, True),
        ({"keep_best": 1}, True),
        ({"early_stopping": 3}, True),
    ],
)
def test_computes_dev_bleu_if_a_setting_requires_bleu(given, computes):
    assert config(**given).computes_dev_bleu is computes
    assert config(**given).resolve().dev_bleu is computes


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("13b", "Expected bleu_tokenize to be one of 13a, intl, zh, .* Received: '13b'."),
        ("flores200", ".* Received: 'flores200'. .* score the --output of trainer.evaluate"),
        ("ja-mecab", "bleu_tokenize=ja-mecab. Received: an environment .* 'sacrebleu.ja.'"),
        ("ko-mecab", "bleu_tokenize=ko-mecab. Received: an environment .* 'sacrebleu.ko.'"),
    ],
)
def test_tokenizer_that_is_not_available_raises(name, message, monkeypatch):
    for package in ("MeCab", "mecab_ko"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=message):
        config(bleu_tokenize=name)


def test_every_architecture_has_a_recipe():
    from t2t_relpos.models import PRESETS

    assert RECIPES.keys() == PRESETS.keys()
    for preset in RECIPES:
        resolved = config(preset=preset).resolve().to_dict()
        unset = {name for name, value in resolved.items() if value is None}
        assert not unset & RECIPES[preset].keys()


def test_names_of_other_modules_are_equal():
    from t2t_relpos.models import config as model_config
    from trainer.data import sentencepiece_tokenizer

    assert NORMALIZATIONS == sentencepiece_tokenizer.NORMALIZATIONS
    supported = [x for x in model_config.POSITIONS if not x.startswith("relative_v2")]
    assert sorted(POSITIONS) == sorted(supported)


def test_text_without_sources_makes_a_language_model():
    dev = {"keep_best": 1, "early_stopping": 2, "dev_text": "y", "best_metric": "dev_loss"}
    resolved = config(**OF_TEXT, **dev).resolve().resolve()
    assert resolved.kind == "language_model" and not resolved.computes_dev_bleu
    assert resolved.needs_dev_set and resolved.score_settings == {"best_metric": "dev_loss"}
    assert resolved.train_text.endswith("/x") and resolved.dev_text.endswith("/y")
    assert of_hparams("lmx_base", LMX, **OF_TEXT).label_smoothing == 0.0


def of_hparams(hparams_set, hparams=None, **changes):
    return config(preset=None, hparams_set=hparams_set, hparams=hparams, **changes).resolve()


def test_hparams_give_the_recipe():
    resolved = of_hparams("transformer_tall", "optimizer_adam_beta1=0.8", adam_beta2=0.9)
    expected = {
        "batch_tokens": 2048,
        "learning_rate": 2.0,
        "warmup_steps": 8000,
        "label_smoothing": 0.0,
        "adam_beta1": 0.8,
        "adam_beta2": 0.9,
        "adam_epsilon": 1e-9,
        "clip_norm": 1.0,
        "max_length": 1024,
        "train_steps": 250_000,
    }
    assert {name: getattr(resolved, name) for name in expected} == expected
    names = {"hparams_set", "preset", "config"}
    for preset in RECIPES.keys() & SETS.keys():
        one, other = of_hparams(preset).to_dict(), config(preset=preset).resolve().to_dict()
        assert {n for n in one if one[n] != other[n]} <= names, preset


@pytest.mark.parametrize(
    ("hparams", "expected"),
    [
        ("learning_rate_schedule=legacy,learning_rate=0.15", 1.5),
        ("learning_rate_schedule=constant * rsqrt_decay*linear_warmup,hidden_size=256", 32.0),
        ("learning_rate_schedule=rsqrt_hidden_size*constant*linear_warmup*rsqrt_decay", 2.0),
    ],
)
def test_learning_rate_of_schedules_that_are_noams(hparams, expected):
    assert of_hparams("transformer_base", hparams).learning_rate == expected


@pytest.mark.parametrize("hparams_set", SETS)
def test_hparams_in_the_message_make_every_set_trainable(hparams_set):
    try:
        of_hparams(hparams_set)
    except ValueError as error:
        if found := re.search('give --hparams="(.*)"', str(error)):
            of_hparams(hparams_set, found[1])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"Expected --config to be a JSON file. Received: .*x.json \(No such file"),
        ("{", r"Expected --config to be a JSON file. Received: .*x.json \(not valid JSON: "),
        ('{"dropout": 0, "dropout": 1}', r"x.json \(.*: the key 'dropout' occurs twice\)"),
        ("[]", "Expected --config to be a JSON object .* Received: .*x.json, other JSON."),
        ('{"architecture": {}}', "Received: .*x.json, a whole config.json."),
    ],
)
def test_invalid_config_file_raises(content, message, tmp_path):
    file = tmp_path / "x.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=message):
        config(preset=None, config=str(file)).resolve()


def test_resolve_makes_paths_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given, expected in (("a", f"{tmp_path}/a"), ("a, b,", f"{tmp_path}/a,{tmp_path}/b")):
        resolved = config(**TEXT | {"train_source": given, "vocab": "c"}).resolve()
        assert (resolved.data, resolved.train_source) == ("files", expected)
        assert resolved.vocab == f"{tmp_path}/c"


def hparams_of(hparams_set, hparams=None):
    return {"preset": None, "hparams_set": hparams_set, "hparams": hparams}


OF_TEXT = {"data": None, "train_text": "x"}
# Settings and the first words of the error.
INVALID = [
    ({"model_dir": None}, "Expected a directory for the model. Received: none."),
    ({"preset": "tyni"}, "Expected preset to be one of shaw_base, .* Received: tyni. Did you mean"),
    ({"preset": None}, "Expected preset to be one of .* Received: none. Give one with --preset"),
    ({"preset": "transformer_base_v3"}, ".* equal to transformer_base: give --preset"),
    ({"preset": "transformer_base_v2"}, ".* is no preset: give --hparams_set"),
    # Not transformer_base, _v1 and _big.
    ({"preset": "universal_transformer_base"}, ".* Give another --preset"),
    *(
        ({name: "x"}, f"Expected either preset or {name}. Received: both.")
        for name in ("hparams_set", "config", "init_from")
    ),
    (
        {"source_vocab": "x"},
        "Expected vocab, .* with source_vocab. Received: source_vocab='x' only",
    ),
    ({"preset": None, "init_from": "y", "vocab": "x"}, "Expected no vocab with init_from, because"),
    (hparams_of("transformer_bas"), ".* Did you mean 'transformer_base'"),
    (hparams_of("transformer"), r".*Received: 'transformer'\.$"),
    (hparams_of("transformer_base", "num_layers=3"), r".*Received: 'num_layers'\.$"),
    (hparams_of("transformer_base", "hidden_size=x"), "Expected hidden_size to be of type int"),
    (hparams_of("lmx_base"), ".*='Adafactor'.* give --hparams=\"attention_dropout_broadcast"),
    (hparams_of("transformer_base", "weight_decay=0.1"), '.*="weight_decay=0.0", with'),
    (hparams_of("transformer_supervised_attention"), "Expected an hparams set without supervised"),
    (hparams_of(None, "hidden_size=8"), "Expected hparams_set with hparams."),
    ({"data": None}, "Expected training data. Received: none."),
    ({"data": "files"}, "Expected training data. Received: none."),
    ({"train_source": "x"}, "Expected train_source and train_target together."),
    ({"dev_target": "x"}, "Expected dev_source and dev_target together."),
    (TEXT | {"data": "any"}, "Expected no train_source with data='any'. Received: 'x'."),
    ({"dev_source": "x", "dev_target": "y"}, "Expected no dev_source with data='any'."),
    (TEXT | {"direction": "en-de"}, "Expected no direction with text files."),
    (TEXT | {"data_dir": "d"}, "Expected no data_dir with text files."),
    *(
        (OF_TEXT | {name: value}, f"Expected no {name} with train_text, which trains a language")
        for name, value in (
            *(("direction", "x"), ("data", "x"), ("train_source", "x"), ("dev_target", "x")),
            *(
                ("source_vocab_size", 40),
                ("source_vocab", "x"),
                ("dev_bleu", True),
                ("best_metric", "dev_bleu"),
            ),
        )
    ),
    ({"dev_text": "x"}, "Expected train_text, which trains a language model, with dev_text."),
    ({"best_metric": "dev_loss"}, "Expected train_text, which .* with best_metric=dev_loss."),
    ({"train_steps": 0}, "Expected train_steps to be at least 1. Received: 0."),
    ({"dropout": 1.0}, "Expected dropout to be below 1.0. Received: 1.0."),
    ({"clip_norm": 0.0}, "Expected clip_norm to be above 0.0. Received: 0.0."),
    ({"strategy": "both"}, "Expected strategy to be one of auto, one, mirrored,"),
    ({"position": "relatve"}, "Expected position to be one of relative,"),
    ({"seed": "1"}, "Expected seed to be of type int. Received: '1'"),
    ({"seed": True}, "Expected seed to be of type int. Received: True"),
    ({"seed": None}, "Expected seed to be of type int. Received: None"),
    ({"seed": (1, 2)}, r"Expected seed to be of type int. Received: \(1, 2\)"),
    ({"deterministic": 1}, "Expected deterministic to be of type bool. Received: 1"),
    *(
        ({"max_relative_position": value}, "Expected max_relative_position to be of type int or")
        for value in ("64,8", (64,), [1, 2, 3], (), (1.5, 2), (True, 2), True)
    ),
    *(
        ({"max_relative_position": value}, "Expected max_relative_position to be at least 0")
        for value in (-1, (-1, 8), (8, -1))
    ),
    ({"jit_compile": True, "strategy": "multiworker"}, "Expected no jit_compile with the strategy"),
    ({"jit_compile": True, "deterministic": True}, "Expected no deterministic with jit_compile"),
]


@pytest.mark.parametrize(("settings", "message"), INVALID)
def test_invalid_settings_raise(settings, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        config(**settings).resolve()


FLOAT_SETTINGS = [
    (settings, field.name)
    for settings in (RunConfig, TranslationSettings, GenerationSettings)
    for field in dataclasses.fields(settings)
    if field.type in (float, float | None)
]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 1e39, 10**400])
@pytest.mark.parametrize(("settings", "name"), FLOAT_SETTINGS)
def test_numbers_that_are_not_finite_in_float32_raise(settings, name, value):
    required = MINIMAL if settings is RunConfig else {}
    message = re.escape(f" Received: {value}.")
    with pytest.raises(ValueError, match=f"Expected {name} to be .*{message}"):
        settings(**required, **{name: value})
