"""Tests of the training benchmark with tiny sizes: batches and other systems."""

import gzip
import importlib.util

import numpy as np
import pytest
from benchmark_runs import read_csv, run

from benchmarks.training import batches, opennmt_step, tensor2tensor_step
from examples.synthetic_corpus import generate
from t2t_relpos.models import PRESETS, Transformer, TransformerConfig
from t2t_relpos.t2t import config_from_hparams, parse_hparams

pytestmark = pytest.mark.slow
SIZES = {"vocab_size": 31, "num_encoder_layers": 2, "num_decoder_layers": 3, "num_heads": 3}
INPUTS, TARGETS = np.array([[5, 1, 0], [4, 4, 1]]), np.array([[3, 1], [1, 0]])


@pytest.mark.long
def test_training_benchmark_measures_all_systems(tmp_path):
    sources, targets = zip(*generate("train", size=97))
    with gzip.open(tmp_path / "source.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(sources) + "\n")
    (tmp_path / "target").write_text("\n".join(targets) + "\n", encoding="utf-8")
    files = [f"--train_source={tmp_path}/source.gz", f"--train_target={tmp_path}/target"]
    sizes = ["--vocab_size=151", "--batch_tokens=67", "--steps=1", "--runs=2", "--threads=1,2"]
    csv = f"--csv={tmp_path}/table.csv"
    done = run("training", *files, csv, *sizes)
    for name in ("opennmt", "tensor2tensor"):
        assert f"Skipping {name}: no Python at --{name}_python=None." in done.stderr
    rows = read_csv(tmp_path / "table.csv")
    systems = ["trainer", "trainer bfloat16", "trainer sinusoidal"]
    if importlib.util.find_spec("torch"):
        systems.append("torch")
    cases = [(threads, system) for threads in "12" for system in systems]
    assert [(row["threads"], row["system"]) for row in rows] == cases
    for row in rows:
        system = row.pop("system")
        numbers = {name: float(value) for name, value in row.items()}
        assert 0 < numbers["tokens/s low"] <= numbers["tokens/s"] <= numbers["tokens/s high"]
        assert (numbers["time / trainer low"] == numbers["time / trainer"] == 1) == (
            system == "trainer"
        )
        assert numbers["MB"] > 10
    lines = done.stdout.splitlines()
    assert lines[0].startswith("tiny, 2 runs of 1 steps, ")
    assert sum(line.startswith("| ") for line in lines) == 2 + len(rows)


def test_make_batches_limits_tokens_and_write_batches_saves_them(tmp_path):
    made = batches.make_batches(("", ""), vocab_size=331, batch_tokens=67, max_length=41, count=3)
    assert len(made) == 3
    for inputs, targets in made:
        assert len(inputs) == len(targets)
        assert max(inputs.size, targets.size) <= 67
    arrays = np.load(batches.write_batches(tmp_path / "batches.npz", made))
    np.testing.assert_array_equal(arrays["targets_2"], made[2][1])


def test_count_tokens_ignores_padding():
    assert batches.count_tokens([(INPUTS, TARGETS)]) == 8


@pytest.mark.parametrize(
    "preset", [name for name, settings in PRESETS.items() if settings["position"] == "relative"]
)
def test_hparams_from_config_describe_the_architecture(preset):
    config = TransformerConfig.from_preset(preset, vocab_size=31)
    hparams = tensor2tensor_step.hparams_from_config(config.to_dict())
    restored = config_from_hparams(parse_hparams("transformer_base") | hparams, 31)
    assert restored.to_dict() | {"share_heads": config.share_heads} == config.to_dict()


def test_opennmt_convert_batch_keeps_the_sentences():
    features, labels = opennmt_step.convert_batch(INPUTS, TARGETS)
    assert {name: value.tolist() for name, value in features.items()} == {
        "ids": [[6, 2, 0], [5, 5, 2]],
        "length": [2, 3],
    }
    expected = {"ids": [[1, 4], [1, 0]], "ids_out": [[4, 2], [2, 0]], "length": [2, 1]}
    assert {name: value.tolist() for name, value in labels.items()} == expected


@pytest.mark.parametrize("preset", ["tiny", "shaw_base"])
def test_torch_model_is_the_transformer_with_biases_of_attention(preset):
    torch_step = pytest.importorskip("benchmarks.training.torch_step")
    config = TransformerConfig.from_preset(preset, vocab_size=31, position="sinusoidal")
    layers = config.num_encoder_layers, config.num_decoder_layers
    model = torch_step.TranslationModel(config.to_dict(), 0.1, max_length=7)
    ours = Transformer(config)
    ours({"inputs": INPUTS, "targets": TARGETS})
    # PyTorch's attention has four biases, and its stacks end in a normalization.
    biases = (layers[0] + 2 * layers[1]) * 4 * config.hidden_dim
    biases += 0 if config.normalize_first else 4 * config.hidden_dim
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == ours.count_params() + biases


def test_torch_step_starts_at_the_entropy_of_the_vocabulary_and_learns():
    torch_step = pytest.importorskip("benchmarks.training.torch_step")
    sizes = SIZES | {"vocab_size": 997, "hidden_dim": 24, "intermediate_dim": 17}
    config = TransformerConfig(**sizes, dropout=0.0).to_dict()
    settings = {"config": config, "threads": 1, "label_smoothing": 0.1, "max_length": 9}
    ids = np.random.default_rng(1).integers(2, 997, (2, 20, 9))
    losses = torch_step.make(settings)([(ids[0], ids[1])] * 20)()["losses"]
    assert len(losses) == 20
    # Normalized states and rows of length 1 give logits with a variance of 1.
    assert losses[0] == pytest.approx(np.log(997) + 0.5, abs=0.5)
    assert losses[-1] < losses[0]


def test_torch_loss_ignores_padding_and_later_targets():
    """Padding and other sentences of the batch do not change the losses of a sentence."""
    torch = pytest.importorskip("torch")
    torch_step = pytest.importorskip("benchmarks.training.torch_step")
    config = TransformerConfig(hidden_dim=12, intermediate_dim=17, **SIZES).to_dict()
    model = torch_step.TranslationModel(config, 0.0, max_length=9).eval()
    padded = np.pad(INPUTS, ((0, 0), (0, 3))), np.pad(TARGETS, ((0, 0), (0, 4)))
    of_batch, of_padded = (
        model(*(torch.tensor(ids) for ids in batch)).item() for batch in ((INPUTS, TARGETS), padded)
    )
    assert of_padded == pytest.approx(of_batch, rel=1e-5)
    first, second = (
        model(*(torch.tensor(ids[[i]]) for ids in (INPUTS, TARGETS))).item() for i in (0, 1)
    )
    # Two target tokens and one.
    assert of_batch == pytest.approx((2 * first + second) / 3, rel=1e-5)
