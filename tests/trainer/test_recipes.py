"""Tests of the paper's recipe on a fake WMT 2014, with the documented command and a small model."""

import json
import re

import numpy as np
import pytest
from absl import flags

from t2t_relpos.models import PRESETS, TransformerConfig
from trainer import average, evaluate, train
from trainer.config import RunConfig
from trainer.data.batching import training_batches
from trainer.data.buckets import report_lengths
from trainer.data.encoding import encode_pairs
from trainer.data.tfds_sets import read_tfds
from trainer.model_dir import ModelDirectory

SMALLER = {
    "hidden_dim": 24,
    "intermediate_dim": 29,
    "num_heads": 3,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
}


def run(program, define, *arguments):
    values = flags.FlagValues()
    define(values)
    program.main(values(["program", *arguments]), values)


@pytest.fixture(scope="module")
def trained(wmt14, tmp_path_factory):
    """Returns the path of a model directory after three steps of the recipe shaw_base."""
    path = tmp_path_factory.mktemp("runs") / "base"
    data = [
        "--data=wmt14_translate/de-en",
        "--direction=en-de",
        f"--data_dir={wmt14.data_dir}",
        "--vocab_size=251",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "shaw_base", PRESETS["shaw_base"] | SMALLER)
        few = ["--train_steps=3", "--checkpoint_every=1", "--log_every=1"]
        run(train, train.define_flags, "--preset=shaw_base", f"--model_dir={path}", *data, *few)
    return path


@pytest.mark.slow
def test_recorded_settings_equal_the_recipe(trained, wmt14):
    expected = RunConfig(
        preset="shaw_base",
        model_dir=str(trained),
        data="wmt14_translate/de-en",
        direction="en-de",
        data_dir=wmt14.data_dir,
        vocab_size=251,
        train_steps=3,
        checkpoint_every=1,
        log_every=1,
    ).resolve()
    chosen = {"strategy": "one", "jit_compile": False}  # by the machine
    assert json.loads((trained / "run.json").read_text()) == expected.to_dict() | chosen
    architecture = TransformerConfig.from_preset("shaw_base", vocab_size=251, **SMALLER)
    assert ModelDirectory.open(trained).read_config()["architecture"] == architecture.to_dict()


@pytest.mark.slow
def test_training_and_dev_sets_are_those_of_wmt(trained, wmt14):
    assert [path.name for path in sorted((trained / "checkpoints").iterdir())] == [
        "step-000001",
        "step-000002",
        "step-000003",
    ]
    corpora = {
        split: encode_pairs(
            read_tfds("wmt14_translate/de-en", split, data_dir=wmt14.data_dir),
            ModelDirectory(trained).load_tokenizer(),
        )
        for split in ("train", "dev")
    }
    for split, pairs in corpora.items():
        (kept,) = (trained / "ids" / split).iterdir()
        offsets = np.fromfile(kept / "target.offsets", "int64")
        np.testing.assert_array_equal(offsets, pairs.targets.offsets)
    lengths = report_lengths(corpora["train"], 256)
    assert (lengths.pairs, lengths.used) == (3 * len(wmt14.pairs("train")), lengths.pairs)
    assert len(corpora["dev"]) == len(wmt14.pairs("newstest2013"))
    # Batches have the size of the recipe and are split into several micro-batches.
    batches = training_batches(corpora["train"], 25_000, 256, seed=1).take(3).as_numpy_iterator()
    assert 4 * 4096 < max(batch["targets"].size for batch in batches) <= 25_000


@pytest.mark.slow
def test_average_of_checkpoints_is_evaluated_with_both_bleus(trained, wmt14, tmp_path, capsys):
    output = tmp_path / "average"
    run(
        average,
        average.define_flags,
        f"--model_dir={trained}",
        "--last=2",
        f"--output_dir={output}",
    )
    assert capsys.readouterr().out.endswith("step-000002, step-000003\n")
    data = ["--data=wmt14_translate/de-en", "--direction=en-de", f"--data_dir={wmt14.data_dir}"]
    run(
        evaluate,
        evaluate.define_flags,
        f"--model_dir={output}",
        *data,
        "--beam_size=1",
        f"--output={tmp_path / 'out'}",
    )
    printed = capsys.readouterr().out
    assert re.match(r"test BLEU = \d+\.\d\d\n", printed)
    assert "test BLEU compounds split = " in printed and "|tok:moses-de|" in printed
    assert len((tmp_path / "out").read_text().splitlines()) == len(wmt14.pairs("newstest2014"))


def test_recipes_equal_the_paper():
    """Shaw et al. 2018, section 4.1."""
    for preset, steps, last in (("shaw_base", 100_000, None), ("shaw_big", 300_000, 20)):
        config = RunConfig(preset=preset, model_dir="any", data="wmt14_translate/de-en").resolve()
        assert (config.vocab_size, config.batch_tokens, config.train_steps) == (
            32_768,
            25_000,
            steps,
        )
        assert (config.warmup_steps, config.learning_rate, config.label_smoothing) == (
            4000,
            1.0,
            0.1,
        )
        assert (config.adam_beta1, config.adam_beta2, config.adam_epsilon) == (0.9, 0.98, 1e-9)
        assert config.device_tokens == 4096
        assert (config.checkpoint_minutes, config.checkpoint_every) == (10.0, None)
        assert last is None or config.keep_checkpoints >= last
    french = RunConfig(
        preset="shaw_big",
        model_dir="any",
        data="wmt14_translate/fr-en",
        direction="en-fr",
        dropout=0.1,
    ).resolve()
    assert french.architecture_overrides() == {"dropout": 0.1}
