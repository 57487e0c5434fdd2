import json
import shutil

import keras
import numpy as np
import pytest
from small_transformers import small_config

from t2t_relpos.models import Transformer
from trainer.data.encoding import EncodedPairs, IdSequences
from trainer.model_dir import ModelDirectory
from trainer.training.dry_run import (
    Bucket,
    count_buckets,
    forecast,
    format_table,
    memory_of_weights,
)
from trainer.training.preparation import describe_settings, prepare


def sequences(lengths):
    return IdSequences(np.full(sum(lengths), 5, "<i4"), np.concatenate([[0], lengths]).cumsum())


@pytest.fixture
def pairs():
    return EncodedPairs(sequences([5, 7, 8, 12, 3, 300]), sequences([6, 4, 2, 13, 8, 4]))


def test_count_buckets_counts_batches_tokens_and_padded_positions(small_run, tmp_path, pairs):
    """Of four pairs with at most 8 tokens, three fill a batch and one moves to the next bucket."""
    found = count_buckets(pairs, small_run.config(tmp_path, batch_tokens=26).resolve())
    assert [bucket[:3] for bucket in found] == [(8, 3, 1), (13, 2, 1)]
    assert sum(bucket.tokens for bucket in found) == 5 + 7 + 8 + 12 + 3 + 6 + 4 + 2 + 13 + 8
    assert found[1].positions == 2 * (12 + 13)
    config = small_run.config(tmp_path, batch_tokens=26, jit_compile=True).resolve()
    for devices, rows in ((1, 3), (2, 4)):  # XLA pads to boundaries.
        xla = count_buckets(pairs, config, devices)
        assert [bucket.positions for bucket in xla] == [rows * 16, 2 * 26]


def test_format_table_aligns_columns_and_sums_an_epoch():
    assert format_table(
        [Bucket(8, 3, 1, positions=40, tokens=30), Bucket(13, 2, 10, positions=60, tokens=60)]
    ).splitlines() == [
        "  length    rows   batches   padding",
        "       8       3         1     25.0%",
        "      13       2        10      0.0%",
        "An epoch: 11 batches, 90 tokens, padding 10.0%.",
    ]


@pytest.mark.parametrize(("device_tokens", "copies"), [(None, 1), (30, 2)])
def test_memory_of_weights_counts_gradients_and_slots(small_run, tmp_path, device_tokens, copies):
    """With micro-batches, gradients are computed in one buffer and accumulated in another."""
    model = Transformer(small_config())
    model({side: np.ones((1, 1), "int32") for side in ("inputs", "targets")})
    adam = keras.optimizers.Adam(0.1)
    adam.build(model.trainable_variables)
    count = lambda variables: sum(4 * int(np.prod(v.shape)) for v in variables if len(v.shape))
    weights, slots = count(model.trainable_variables), count(adam.variables)
    config = small_run.config(tmp_path, device_tokens=device_tokens)
    assert memory_of_weights(model, config) == (1 + copies) * weights + slots


def test_forecast_leaves_no_files(small_run, tmp_path):
    text = forecast(small_run.config(tmp_path / "model", **small_run.dev))
    for part in (
        f"  model_dir = {tmp_path / 'model'}\n",
        "  vocab_size = 40\n",
        "Parameters: 3,778\n",
        "Devices: 1 CPU\n",
        "  hidden_dim = 12\n",
        "Largest learning rate: 0.207, at step 4\n",
        "An epoch: ",
        "The run: 5 steps, 0.",
        "Memory per device: 0.00 GiB for weights, gradients and Adam, without activations.",
    ):
        assert part in text
    assert list(tmp_path.iterdir()) == []


def test_forecast_leaves_the_files_of_a_start_that_trained_nothing(small_run, tmp_path):
    directory = ModelDirectory.create(tmp_path / "model")
    prepare(small_run.config(directory.path), directory)
    before = {path: path.stat().st_mtime_ns for path in directory.path.rglob("*")}
    text = forecast(small_run.config(directory.path, vocab_size=37))
    assert "\nVocabulary: 37 pieces (new)\n" in text
    assert {path: path.stat().st_mtime_ns for path in directory.path.rglob("*")} == before
    vocabulary = shutil.move(directory.vocabulary_file(), tmp_path / "mine.model")
    text = forecast(small_run.config(directory.path, vocab=str(vocabulary), vocab_size=None))
    assert "\nVocabulary: 40 pieces (existing)\n" in text
    assert not directory.vocabulary_file().exists()


def test_forecast_of_an_existing_run_changes_nothing(finished_run, small_run):
    before = {path: path.stat().st_mtime_ns for path in finished_run.rglob("*")}
    text = forecast(small_run.config(finished_run, vocab_size=None, **small_run.dev))
    assert "  vocab_size = 40\n" in text
    with pytest.raises(ValueError, match="Expected .*configuration of this run. Received: "):
        forecast(small_run.config(finished_run, dropout=0.25, **small_run.dev))
    assert {path: path.stat().st_mtime_ns for path in finished_run.rglob("*")} == before


def test_forecast_of_a_set_that_is_not_on_disk_downloads_nothing(small_run, tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", None)
    settings = {"data": "wmt14_translate/de-en", "data_dir": str(tmp_path / "data")}
    settings |= {"train_source": None, "train_target": None, "batch_tokens": 512}
    text = forecast(small_run.config(tmp_path / "model", **settings))
    for part in (
        "  vocab_size = 40\n",
        f"Data: wmt14_translate/de-en is not in {tmp_path / 'data'}/wmt14_translate/de-en/",
        ". A run downloads it (",
        "Parameters: 3,778\n",
        "Memory per device: ",
    ):
        assert part in text
    assert list(tmp_path.iterdir()) == []


def test_run_that_ends_during_warmup_is_warned_of(small_run, tmp_path):
    def describe(**settings):
        config = small_run.config(tmp_path / "model", **settings).resolve()
        return "\n".join(describe_settings(config, small_config(hidden_dim=16, num_heads=2)))

    warned = describe(train_steps=30, warmup_steps=400, learning_rate=1.0)
    # 16^-0.5 · 400^-0.5 · min(1, step / 400).
    assert "Largest learning rate: 0.000906, at step 29\n" in warned
    assert (
        "  Warning: the run ends during warm-up, whose largest learning rate is 0.0125." in warned
    )
    assert "Largest learning rate: 0.0125, at step 400" in describe(
        train_steps=401, warmup_steps=400, learning_rate=1.0
    )
    assert "Warning" not in describe(train_steps=401, warmup_steps=400)


def test_forecast_counts_the_devices_of_all_workers_and_their_programs(
    small_run, tmp_path, monkeypatch
):
    mirrored = {"strategy": "mirrored", "logical_devices": 2, "jit_compile": True}
    text = forecast(small_run.config(tmp_path / "model", **mirrored))
    assert "XLA: compiles at most 12 programs, one for each of 6 buckets on each of 2" in text
    assert "Devices: 2 CPU\n" in text
    config = small_run.config(tmp_path / "model", strategy="multiworker")
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(ValueError, match="TF_CONFIG with the addresses .* Received: none."):
        forecast(config)
    cluster = {"worker": ["host0:1", "host1:1", "host2:1"]}
    task = {"type": "worker", "index": 1}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    assert "Devices: 3 CPU\n" in forecast(config)
