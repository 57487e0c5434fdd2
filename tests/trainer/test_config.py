import json

import pytest
from absl import flags
from subprocesses import run_python

from trainer.config import POSITIONS, RunConfig, define_flags
from trainer.recipes import RECIPES

MINIMAL = {"preset": "tiny", "model_dir": "runs/x", "data": "any"}


def parsed(*arguments):
    values = flags.FlagValues()
    define_flags(values)
    values(["train", *arguments])
    return RunConfig.from_flags(values)


def test_flags_set_every_type():
    config = parsed(
        "--preset=tiny",
        "--model_dir=a b",
        "--train_source=s",
        "--train_target=t",
        "--batch_tokens=77",
        "--dropout=0.25",
        "--strategy=mirrored",
        "--logical_devices=3",
        "--deterministic",
    )
    assert (config.preset, config.model_dir, config.train_source, config.train_target) == (
        "tiny",
        "a b",
        "s",
        "t",
    )
    assert (config.batch_tokens, config.dropout, config.logical_devices) == (77, 0.25, 3)
    assert config.strategy == "mirrored" and config.deterministic is True


def test_flags_have_defaults_and_help_of_the_fields():
    values = flags.FlagValues()
    define_flags(values)
    values(["train"])
    assert values["log_every"].value == 100 and values["warmup_steps"].value is None
    assert "Maximum length of a sentence in tokens" in values["max_length"].help
    assert parsed("--preset=tiny", "--model_dir=runs/x", "--data=any") == RunConfig(**MINIMAL)


def test_flag_of_wrong_type_raises():
    with pytest.raises(flags.IllegalFlagValueError, match="flag --seed=x"):
        parsed("--seed=x")


def test_settings_equal_their_dict():
    config = RunConfig(**MINIMAL, dropout=0.3).resolve()
    assert RunConfig(**json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("precision", "policy"),
    [("float32", "float32"), ("bfloat16", "mixed_bfloat16"), ("float16", "mixed_float16")],
)
def test_precision_determines_the_dtype_policy(precision, policy):
    assert RunConfig(**MINIMAL, precision=precision).dtype_policy == policy


def test_given_settings_override_the_recipe():
    config = RunConfig(**(MINIMAL | {"preset": "shaw_base"}), warmup_steps=7).resolve()
    assert config.warmup_steps == 7
    assert config.architecture_overrides() == {}


@pytest.mark.parametrize(
    ("preset", "given", "checkpoint_every", "evaluate_every"),
    [
        ("tiny", {}, 500, 500),
        ("tiny", {"checkpoint_every": 70}, 70, 70),
        ("tiny", {"checkpoint_every": 70, "evaluate_every": 30}, 70, 30),
        ("tiny", {"checkpoint_minutes": 5.0}, None, 1000),
        ("transformer_base", {}, 1000, 1000),
        ("shaw_base", {}, None, 1000),
        ("shaw_base", {"checkpoint_every": 70}, 70, 70),
    ],
)
def test_evaluate_every_defaults_to_checkpoint_every(
    preset, given, checkpoint_every, evaluate_every
):
    config = RunConfig(preset=preset, model_dir="x", data="any", **given).resolve()
    assert (config.checkpoint_every, config.evaluate_every) == (checkpoint_every, evaluate_every)


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
    config = RunConfig(preset="tiny", model_dir="x", data="any", **given)
    assert config.computes_dev_bleu is computes
    assert config.resolve().dev_bleu is computes


def test_every_architecture_has_a_recipe():
    from t2t_relpos.models import PRESETS

    assert RECIPES.keys() == PRESETS.keys()
    for preset in RECIPES:
        resolved = RunConfig(**(MINIMAL | {"preset": preset})).resolve().to_dict()
        unset = {name for name, value in resolved.items() if value is None}
        assert not unset & RECIPES[preset].keys()


def test_architecture_returns_overrides_of_the_preset():
    changes = {
        "dropout": 0.0,
        "position": "relative+sinusoidal",
        "max_relative_position": 3,
        "use_value_table": False,
    }
    assert RunConfig(**MINIMAL, **changes).architecture_overrides() == changes
    assert RunConfig(**MINIMAL).architecture_overrides() == {}


def test_positions_equal_those_of_the_model():
    from t2t_relpos.models import config

    assert POSITIONS == config.POSITIONS
    with pytest.raises(
        ValueError, match="Expected position to be one of relative, .*Received: 'relatve'"
    ):
        RunConfig(**MINIMAL, position="relatve")


def test_unknown_preset_raises():
    with pytest.raises(
        ValueError,
        match=(
            "Expected preset to be one of shaw_base, .*, tiny. Received: tyni. Did you mean tiny"
        ),
    ):
        RunConfig(**(MINIMAL | {"preset": "tyni"})).resolve()
    with pytest.raises(ValueError, match="Received: none. Give one with --preset"):
        RunConfig(**(MINIMAL | {"preset": None})).resolve()


def test_resolve_makes_paths_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = RunConfig(preset="tiny", model_dir="m", train_source="a", train_target="b").resolve()
    assert (config.data, config.train_source) == ("files", str(tmp_path / "a"))
    config = RunConfig(
        preset="tiny", model_dir="m", train_source="a, b,", train_target="c"
    ).resolve()
    assert config.train_source == f"{tmp_path}/a,{tmp_path}/b"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"model_dir": None},
            "Expected a directory for the model. Received: none. Give one with --model_dir",
        ),
        (
            {"data": None},
            "Expected training data. Received: none. Give --train_source and --train_target, or "
            "--data=",
        ),
        (
            {"data": "files"},
            "Expected training data. Received: none. Give --train_source and --train_target, or ",
        ),
        (
            {"train_source": "x"},
            "Expected train_source and train_target together. Received: train_source "
            "only.*--train_target",
        ),
        (
            {"dev_target": "x"},
            "Expected dev_source and dev_target together. Received: dev_target only. Give "
            "--dev_source",
        ),
        (
            {"train_source": "x", "train_target": "y"},
            "Expected either train_source or data='any'. Received: both",
        ),
        (
            {"dev_source": "x", "dev_target": "y"},
            "Expected either dev_source or data='any'. Received: both",
        ),
        (
            {"data": None, "train_source": "x", "train_target": "y", "direction": "en-de"},
            "Expected no direction with text files",
        ),
        (
            {"data": None, "train_source": "x", "train_target": "y", "data_dir": "d"},
            "Expected data_dir only with a set of TensorFlow Datasets. Received: 'd' with text "
            "files. Leave it out.",
        ),
        ({"train_steps": 0}, "Expected train_steps to be at least 1. Received: 0"),
        ({"dropout": 1.0}, "Expected dropout to be below 1.0. Received: 1.0"),
        (
            {"label_smoothing": float("nan")},
            "Expected label_smoothing to be at least 0.0. Received: nan",
        ),
        (
            {"strategy": "both"},
            "Expected strategy to be one of auto, one, mirrored, multiworker. Received: 'both'",
        ),
        ({"seed": "1"}, "Expected seed to be of type int. Received: '1'"),
        ({"seed": True}, "Expected seed to be of type int. Received: True"),
        ({"seed": None}, "Expected seed to be of type int. Received: None"),
        ({"deterministic": 1}, "Expected deterministic to be of type bool. Received: 1"),
        (
            {"steps_per_execution": 4, "checkpoint_every": 10},
            "Expected checkpoint_every to be a multiple of steps_per_execution. Received: "
            "checkpoint_every=10",
        ),
        (
            {"steps_per_execution": 4, "evaluate_every": 7},
            "Expected evaluate_every to be a multiple of steps_per_execution",
        ),
        (
            {"steps_per_execution": 4, "train_steps": 6},
            "Expected train_steps to be a multiple of steps_per_execution",
        ),
        (
            {"steps_per_execution": 4, "strategy": "mirrored"},
            "Expected steps_per_execution to be 1 with the strategy mirrored",
        ),
        (
            {"jit_compile": True, "strategy": "multiworker"},
            "Expected no jit_compile with the strategy multiworker: XLA can't compile",
        ),
        (
            {"clip_norm": 0.0},
            "Expected clip_norm to be above 0.0. Received: 0.0.",
        ),
        ({"learning_rate": 0.0}, "Expected learning_rate to be above 0.0. Received: 0.0."),
        ({"adam_epsilon": 0.0}, "Expected adam_epsilon to be above 0.0. Received: 0.0."),
        ({"checkpoint_minutes": 0.0}, "Expected checkpoint_minutes to be above 0.0."),
        ({"learning_rate": float("nan")}, "Expected learning_rate to be above 0.0. Received: nan"),
    ],
)
def test_invalid_settings_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(**MINIMAL | settings)


def test_config_imports_neither_keras_nor_tensorflow():
    program = (
        "import sys; from trainer.config import RunConfig; "
        "RunConfig(preset='tiny', model_dir='x', data='any').resolve(); "
        "sys.exit(bool({'keras', 'tensorflow'} & sys.modules.keys()))"
    )
    run_python("-c", program)
