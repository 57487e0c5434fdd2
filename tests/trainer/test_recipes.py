"""Tests of the paper's recipe on a fake WMT 2014, with the documented command and a small model."""

import json

import numpy as np
import pytest
from programs import Program

from t2t_relpos.models import PRESETS, TransformerConfig
from trainer import train
from trainer.config import RunConfig
from trainer.data.batching import report_lengths, training_batches
from trainer.data.corpus import read_tfds
from trainer.data.encoding import encode_pairs
from trainer.model_dir import ModelDirectory

SMALLER = {
    "hidden_dim": 12,
    "intermediate_dim": 17,
    "num_heads": 3,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
}
CORPUS = {"data": "wmt14_translate/de-en", "direction": "en-de"}
FEW_STEPS = {"vocab_size": 251, "train_steps": 2, "checkpoint_every": 1, "log_every": 1}


@pytest.fixture(scope="module")
def trained(wmt14, tmp_path_factory):
    """Returns the path of a model directory after two steps of the recipe shaw_base."""
    path = tmp_path_factory.mktemp("runs") / "base"
    settings = {"preset": "shaw_base", "model_dir": path, "data_dir": wmt14.data_dir}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "shaw_base", PRESETS["shaw_base"] | SMALLER)
        Program(train)(**settings, **CORPUS, **FEW_STEPS)
    return path


@pytest.mark.slow
def test_recorded_settings_equal_the_recipe(trained, wmt14):
    settings = {"preset": "shaw_base", "model_dir": str(trained), "data_dir": wmt14.data_dir}
    expected = RunConfig(**settings, **CORPUS, **FEW_STEPS).resolve()
    chosen = {"strategy": "one", "jit_compile": False}  # by the machine
    chosen |= {"bleu_tokenize": "13a", "best_metric": "dev_bleu"}  # at the start
    chosen |= {"byte_fallback": False, "normalization": "nmt_nfkc"}
    recorded = json.loads((trained / "run.json").read_text())
    assert set(recorded.pop("contents")) == {"train", "dev"}
    assert recorded.pop("longest") > 0 and recorded.pop("first_step_seconds") > 0
    assert recorded == expected.to_dict() | chosen
    architecture = TransformerConfig.from_preset("shaw_base", vocab_size=251, **SMALLER)
    assert ModelDirectory.open(trained).read_config()["architecture"] == architecture.to_dict()


@pytest.mark.slow
def test_batches_of_wmt_have_the_size_of_the_recipe(trained, wmt14):
    tokenizers = ModelDirectory(trained).load_tokenizers()
    for split in ("train", "dev"):
        pairs = encode_pairs(read_tfds(CORPUS["data"], split, data_dir=wmt14.data_dir), tokenizers)
        (kept,) = (trained / "ids" / split).iterdir()
        offsets = np.fromfile(kept / "target.offsets", "int64")
        np.testing.assert_array_equal(offsets, pairs.targets.offsets)
        if split == "train":
            assert report_lengths(pairs, 256).used == len(pairs)
            batches = training_batches(pairs, 25_000, 256, seed=1).take(3).as_numpy_iterator()
            # They are split into several micro-batches.
            assert 4 * 4096 < max(batch["targets"].size for batch in batches) <= 25_000


def test_recipes_equal_the_paper():
    """Shaw et al. 2018, section 4.1."""
    for preset, steps, last in (("shaw_base", 100_000, None), ("shaw_big", 300_000, 20)):
        config = RunConfig(preset=preset, model_dir="any", data="wmt14_translate/de-en").resolve()
        expected = {
            "vocab_size": 32_768,
            "batch_tokens": 25_000,
            "train_steps": steps,
            "warmup_steps": 4000,
            "learning_rate": 1.0,
            "label_smoothing": 0.1,
            "adam_beta1": 0.9,
            "adam_beta2": 0.98,
            "adam_epsilon": 1e-9,
            "device_tokens": 4096,
            "checkpoint_minutes": 10.0,
            "checkpoint_every": None,
        }
        assert {name: getattr(config, name) for name in expected} == expected
        assert last is None or config.keep_checkpoints >= last
    french = RunConfig(
        preset="shaw_big",
        model_dir="any",
        data="wmt14_translate/fr-en",
        direction="en-fr",
        dropout=0.1,
    ).resolve()
    assert french.architecture_overrides() == {"dropout": 0.1}


@pytest.mark.parametrize(
    ("hparams_set", "change", "rate", "warned"),
    [
        ("transformer_base", "learning_rate=0.1", 2.0, True),
        ("transformer_base", "learning_rate_constant=1.0", 1.0, False),
        ("transformer_base", "", 2.0, False),
        ("transformer_base_v1", "learning_rate=0.2", 2.0, False),  # The schedule is `legacy`.
    ],
)
def test_learning_rate_without_effect_is_reported(caplog, hparams_set, change, rate, warned):
    settings = {"hparams_set": hparams_set, "hparams": change, "model_dir": "any", "data": "any"}
    assert RunConfig(**settings).resolve().learning_rate == rate
    assert ("Give learning_rate_constant" in caplog.text) == warned
