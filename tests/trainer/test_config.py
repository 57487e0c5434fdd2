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


def test_flag_of_wrong_type_raises():
    with pytest.raises(flags.IllegalFlagValueError, match="flag --seed=x"):
        parsed("--seed=x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("16", 16), ("0x10", 16), ("64,8", (64, 8)), (" 64, 8", (64, 8)), ("5,5", 5)],
)
def test_flag_of_distances_is_an_integer_or_a_pair(text, expected):
    given = parsed(*(f"--{k}={v}" for k, v in MINIMAL.items()), f"--max_relative_position={text}")
    assert given == config(max_relative_position=expected)


@pytest.mark.parametrize("text", ["", "64,8,1", "a", "1,", ",1", "1.5,2", "(64, 8)", "64;8"])
def test_flag_of_other_distances_raises(text):
    message = re.escape(f"Expected an integer, or two: LEFT,RIGHT. Received: {text!r}.")
    with pytest.raises(flags.IllegalFlagValueError, match=message):
        parsed(f"--max_relative_position={text}")


def test_help_shows_the_form_of_distances():
    values = flags.FlagValues()
    define_flags(values)
    lines = values.get_help()
    start = lines.index("--max_relative_position:")
    text = " ".join(lines[start : lines.index("--", start + 2)].split())
    assert text == (
        "--max_relative_position: Clipping distance K of relative positions, or two distances "
        "LEFT,RIGHT. Default: the preset's value. (an integer, or two: LEFT,RIGHT)"
    )


@pytest.mark.parametrize("distances", [None, 16, (64, 8)])
def test_settings_equal_their_dict(distances):
    resolved = config(dropout=0.3, max_relative_position=distances).resolve()
    assert RunConfig(**json.loads(json.dumps(resolved.to_dict()))) == resolved


@pytest.mark.parametrize(
    ("precision", "policy"),
    [("float32", "float32"), ("bfloat16", "mixed_bfloat16"), ("float16", "mixed_float16")],
)
def test_precision_determines_the_dtype_policy(precision, policy):
    assert config(precision=precision).dtype_policy == policy


def test_given_settings_override_the_recipe():
    resolved = config(preset="shaw_base", warmup_steps=7).resolve()
    assert resolved.warmup_steps == 7
    assert resolved.architecture_overrides() == {}


@pytest.mark.parametrize(
    ("preset", "given", "every", "minutes", "evaluate_every"),
    [
        ("tiny", {}, 500, None, 500),
        ("tiny", {"checkpoint_every": 70}, 70, None, 70),
        ("tiny", {"checkpoint_every": 70, "evaluate_every": 30}, 70, None, 30),
        ("tiny", {"checkpoint_minutes": 5.0}, None, 5.0, 500),
        ("tiny", {"checkpoint_minutes": 5.0, "checkpoint_every": 70}, 70, 5.0, 70),
        ("transformer_base", {}, 1000, None, 1000),
        ("transformer_base", {"checkpoint_minutes": 5.0}, None, 5.0, 1000),
        ("shaw_base", {}, None, 10.0, 1000),
        ("shaw_base", {"checkpoint_every": 70}, 70, None, 70),
        ("shaw_base", {"checkpoint_minutes": 5.0}, None, 5.0, 1000),
        ("shaw_base", {"checkpoint_minutes": 5.0, "checkpoint_every": 70}, 70, 5.0, 70),
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


def test_names_of_other_modules_are_equal():
    from trainer.data import sentencepiece_tokenizer

    assert NORMALIZATIONS == sentencepiece_tokenizer.NORMALIZATIONS


def test_every_architecture_has_a_recipe():
    from t2t_relpos.models import PRESETS

    assert RECIPES.keys() == PRESETS.keys()
    for preset in RECIPES:
        resolved = config(preset=preset).resolve().to_dict()
        unset = {name for name, value in resolved.items() if value is None}
        assert not unset & RECIPES[preset].keys()


def test_architecture_returns_overrides_of_the_preset():
    changes = {
        "dropout": 0.0,
        "position": "relative+sinusoidal",
        "max_relative_position": 3,
        "use_value_table": False,
    }
    assert config(**changes).architecture_overrides() == changes
    assert config().architecture_overrides() == {}


def test_positions_equal_those_of_the_model():
    from t2t_relpos.models import config as model_config

    supported = [x for x in model_config.POSITIONS if not x.startswith("relative_v2")]
    assert sorted(POSITIONS) == sorted(supported)


@pytest.mark.parametrize(
    ("preset", "message"),
    [
        (
            "tyni",
            "Expected preset to be one of shaw_base, .*, tiny. Received: tyni. Did you",
        ),
        (None, "Received: none. Give one with --preset"),
        ("transformer_relativ", "Did you mean transformer_relative"),
        ("transformer_base_v3", "set of tensor2tensor is equal to transformer_base: give --preset"),
        ("transformer_base_v2", "This hparams set of tensor2tensor is no preset: give --hparams_s"),
        # Not transformer_base, _v1 and _big.
        ("universal_transformer_base", "Received: universal_transformer_base. Give another"),
        ("transformer_base_v4", "Give another --preset"),
        ("transformer", "Give another --preset"),
    ],
)
def test_unknown_preset_raises(preset, message):
    with pytest.raises(ValueError, match=message):
        config(preset=preset).resolve()


def of_text(**changes):
    return config(**{"data": None, "train_text": "x"} | changes)


def test_text_without_sources_makes_a_language_model():
    resolved = of_text(keep_best=1, early_stopping=2, dev_text="y", best_metric="dev_loss")
    resolved = resolved.resolve().resolve()
    assert resolved.kind == "language_model" and not resolved.computes_dev_bleu
    assert resolved.needs_dev_set and resolved.score_settings == {"best_metric": "dev_loss"}
    assert resolved.train_text.endswith("/x") and resolved.dev_text.endswith("/y")
    assert of_hparams("lmx_base", LMX, data=None, train_text="x").label_smoothing == 0.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "x") for name in ("direction", "data", "data_dir", *[*TEXT][1:])),
        *(("dev_source", "x"), ("dev_target", "x"), ("source_vocab_size", 40)),
        *(("dev_bleu", True), ("bleu_tokenize", "13a"), ("best_metric", "dev_bleu")),
    ],
)
def test_language_model_rejects_settings_of_pairs(name, value):
    with pytest.raises(ValueError, match=f"Expected no {name} with train_text, which trains a"):
        of_text(**{name: value})


@pytest.mark.parametrize("setting", [{"dev_text": "x"}, {"best_metric": "dev_loss"}])
def test_settings_of_language_models_require_text(setting):
    with pytest.raises(ValueError, match="Expected train_text, which trains .* Received: none."):
        config(**setting)


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


@pytest.mark.parametrize(
    ("hparams_set", "hparams", "message"),
    [
        ("transformer_bas", None, "Received: 'transformer_bas'. Did you mean 'transformer_base'"),
        ("transformer", None, r"Received: 'transformer'\.$"),
        ("transformer_base", "num_layers=3", r"Received: 'num_layers'\.$"),
        ("transformer_base", "hidden_size=x", "Expected hidden_size to be of type int"),
        ("lmx_base", None, "optimizer='Adafactor'.* give --hparams=\"attention_dropout_broad"),
        ("transformer_base", "weight_decay=0.1", 'weight_decay=0.1. .*="weight_decay=0.0", with'),
        ("transformer_supervised_attention", None, "Expected an hparams set without supervised"),
        (None, "hidden_size=8", "Expected hparams_set with hparams. Received: hparams='hidden"),
    ],
)
def test_invalid_hparams_raise(hparams_set, hparams, message):
    with pytest.raises(ValueError, match=message):
        of_hparams(hparams_set, hparams)


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
        ("{", r"Expected --config to be a JSON file. Received: .*x.json \(not JSON: "),
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


@pytest.mark.parametrize("name", ["hparams_set", "config", "init_from"])
def test_sources_of_the_architecture_exclude_each_other(name):
    message = f"Expected either preset or {name}. Received: both. Leave one of them out."
    with pytest.raises(ValueError, match=message):
        config(**{name: "x"})


def test_resolve_makes_paths_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given, expected in (("a", f"{tmp_path}/a"), ("a, b,", f"{tmp_path}/a,{tmp_path}/b")):
        resolved = config(**TEXT | {"train_source": given}).resolve()
        assert (resolved.data, resolved.train_source) == ("files", expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_dir": None}, "Expected a directory for the model. Received: none. Give one"),
        ({"data": None}, "Expected training data. Received: none. Give --train_source and"),
        ({"data": "files"}, "Expected training data. Received: none. Give --train_source and"),
        ({"train_source": "x"}, "Expected train_source and train_target together. Received: one"),
        ({"dev_target": "x"}, "Expected dev_source and dev_target together. Received: one of"),
        (TEXT | {"data": "any"}, "Expected no train_source with data='any'. Received: 'x'"),
        ({"dev_source": "x", "dev_target": "y"}, "Expected no dev_source with data='any'."),
        (TEXT | {"direction": "en-de"}, "Expected no direction with text files"),
        (TEXT | {"data_dir": "d"}, "Expected no data_dir with text files. Received: 'd'. Leave"),
        ({"train_steps": 0}, "Expected train_steps to be at least 1. Received: 0"),
        ({"dropout": 1.0}, "Expected dropout to be below 1.0. Received: 1.0"),
        ({"label_smoothing": float("nan")}, "Expected label_smoothing to be at least 0.0."),
        ({"strategy": "both"}, "Expected strategy to be one of auto, one, mirrored,"),
        ({"position": "relatve"}, "Expected position to be one of relative, .*Received:"),
        ({"seed": "1"}, "Expected seed to be of type int. Received: '1'"),
        ({"seed": True}, "Expected seed to be of type int. Received: True"),
        ({"seed": None}, "Expected seed to be of type int. Received: None"),
        *(
            (
                {"max_relative_position": value},
                r"Expected max_relative_position to be of type int or \(int, int\)\. Received: "
                + re.escape(repr(tuple(value) if isinstance(value, list) else value)),
            )
            for value in ("64,8", (64,), (1, 2, 3), [1, 2, 3], (), (1.5, 2), (True, 2), True, 1.5)
        ),
        ({"max_relative_position": (-1, 8)}, r"Expected max_relative_position to be at least 0\."),
        ({"max_relative_position": (8, -1)}, "Expected max_relative_position to be at least 0"),
        ({"max_relative_position": -1}, "Expected max_relative_position to be at least 0"),
        ({"seed": (1, 2)}, r"Expected seed to be of type int. Received: \(1, 2\)"),
        ({"deterministic": 1}, "Expected deterministic to be of type bool. Received: 1"),
        (
            {"jit_compile": True, "strategy": "multiworker"},
            "Expected no jit_compile with the strategy multiworker: .* on several machines.* Leave "
            "it out, or use --strategy=mirrored",
        ),
        (
            {"jit_compile": True, "deterministic": True},
            "Expected either jit_compile or deterministic",
        ),
        ({"clip_norm": 0.0}, "Expected clip_norm to be above 0.0. Received: 0.0."),
        ({"learning_rate": 0.0}, "Expected learning_rate to be above 0.0. Received: 0.0."),
        ({"adam_epsilon": 0.0}, "Expected adam_epsilon to be above 0.0. Received: 0.0."),
        ({"checkpoint_minutes": 0.0}, "Expected checkpoint_minutes to be above 0.0."),
        ({"learning_rate": float("nan")}, "Expected learning_rate to be above 0.0. Received: nan"),
    ],
)
def test_invalid_settings_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        config(**settings)


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
