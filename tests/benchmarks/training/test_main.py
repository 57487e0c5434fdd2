"""The benchmark of training, at its smallest: it runs, and what it counts and writes fits together."""

import csv
import gzip

import numpy as np
import pytest

from benchmarks.training import batches as batches_module
from benchmarks.training import matmul_rate, opennmt_step, tensor2tensor_step
from t2t_relpos.models import PRESETS, Transformer, TransformerConfig
from t2t_relpos.t2t import config_from_hparams, parse_hparams
from trainer.data.synthetic import generate


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder, pairs = tmp_path_factory.mktemp("texts"), generate("train", size=97)
    with gzip.open(folder / "source.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{source}\n" for source, _ in pairs)
    (folder / "target").write_text("".join(f"{target}\n" for _, target in pairs), encoding="utf-8")
    return f"--train_source={folder}/source.gz", f"--train_target={folder}/target"


def rows_in(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_peers_are_measured_on_the_same_batches(run, texts, tmp_path):
    sizes = [
        "--vocab_size=151",
        "--batch_tokens=67",
        "--steps=2",
        "--runs=3",
        "--threads=1,2",
        "--env=MALLOC_ARENA_MAX=1",
    ]
    done = run("training", *texts, *sizes, f"--csv={tmp_path}/table.csv")
    assert done.returncode == 0, done.stderr
    for name in ("opennmt", "t2t"):
        assert f"Skipping {name}: no Python at --{name}_python=None." in done.stderr
    rows = rows_in(tmp_path / "table.csv")
    peers = ["ours", "ours bfloat16", "ours absolute", "products alone"]
    assert [(row["threads"], row["peer"]) for row in rows] == [
        (threads, peer) for threads in "12" for peer in peers
    ]
    for row in rows:
        numbers = {name: float(value) for name, value in row.items() if name != "peer"}
        assert 0 < numbers["low"] <= numbers["tokens/s"] <= numbers["high"]
        assert (numbers["ratio low"] == numbers["time over ours"] == 1) == (row["peer"] == "ours")
        assert (numbers["share"] == 1) == (row["peer"] == "products alone")
        assert numbers["GFLOP/s"] > 0 and numbers["megabytes"] > 10
    lines = done.stdout.splitlines()
    assert lines[0].startswith("tiny, 3 runs of 2 steps, ")
    assert sum(line.startswith("| ") for line in lines) == 2 + len(rows)


@pytest.mark.slow
def test_ours_is_measured_always(run, tmp_path):
    done = run(
        "training",
        "--peers=ours bfloat16",
        "--vocab_size=331",
        "--batch_tokens=67",
        "--steps=1",
        "--runs=1",
        f"--csv={tmp_path}/table.csv",
    )
    assert done.returncode == 0, done.stderr
    assert [row["peer"] for row in rows_in(tmp_path / "table.csv")] == [
        "ours",
        "ours bfloat16",
        "products alone",
    ]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--preset=transformer_base"], "flag --preset=transformer_base: value should be one of"),
        (
            ["--train_source=x"],
            "Expected both --train_source and --train_target, or neither. Received: no --train_target.",
        ),
        (
            ["--train_target=x"],
            "Expected both --train_source and --train_target, or neither. Received: no --train_source.",
        ),
        (["--env=x"], "Expected --env=NAME=VALUE. Received: --env=x."),
        (["--env==x"], "Expected --env=NAME=VALUE. Received: --env==x."),
        (
            ["--threads=0"],
            "--threads must be positive integers separated by commas. Received: '0'.",
        ),
        (
            ["--peers=fairseq"],
            "--peers must be out of ours, ours bfloat16, ours absolute, opennmt, t2t. Received: fairseq.",
        ),
        (["x"], "Expected flags only. Received: 'x'."),
        (["--train_source=/none/x", "--train_target=/none/x"], "/none/x"),
    ],
)
@pytest.mark.slow
def test_flags(run, arguments, message):
    done = run("training", *arguments)
    assert done.returncode == 1
    assert message in " ".join((done.stdout + done.stderr).split())


def test_products_are_those_of_the_models_weights():
    config = TransformerConfig(
        vocab_size=31,
        num_encoder_layers=2,
        num_decoder_layers=3,
        hidden_dim=12,
        intermediate_dim=17,
        num_heads=3,
    )
    rate = matmul_rate
    elements = sum(
        count * inner * columns
        for (_, inner, columns), count in rate.products(config.to_dict()).items()
    )
    model = Transformer(config)
    ids = np.ones((1, 1), "int32")
    model({"inputs": ids, "targets": ids})
    # Every matrix is multiplied once; tables of positions, which are matrices too, are not counted.
    matrices = [
        weight for weight in model.weights if len(weight.shape) > 1 and "table" not in weight.path
    ]
    assert elements == sum(int(np.prod(weight.shape)) for weight in matrices)
    source = rate.operations(config.to_dict(), {"source": 1, "target": 0})
    # Two encoder layers, and keys and values for three decoder layers; forward and twice backward, multiplied and added.
    assert source == 6 * (2 * (4 * 12 * 12 + 2 * 12 * 17) + 3 * 2 * 12 * 12)
    assert rate.operations(config.to_dict(), {"source": 5, "target": 7}) == 5 * source + 7 * (
        6 * elements - source
    )


def test_batches_are_counted_without_padding(tmp_path):
    batches = batches_module
    made = batches.make_batches("", "", 331, 67, 41, 3)
    assert len(made) == 3
    assert all(
        max(side.size for side in batch) <= 67 and len(batch[0]) == len(batch[1]) for batch in made
    )
    arrays = np.load(batches.write_batches(tmp_path / "batches.npz", made))
    np.testing.assert_array_equal(arrays["targets_2"], made[2][1])
    assert batches.count_tokens(
        [(np.array([[5, 1, 0], [4, 4, 1]]), np.array([[3, 1], [1, 0]]))]
    ) == {"source": 5, "target": 3}


@pytest.mark.parametrize(
    "preset", [name for name, settings in PRESETS.items() if settings["position"] == "relative"]
)
def test_hparams_describe_the_architecture(preset):
    config = TransformerConfig.from_preset(preset, vocab_size=31)
    hparams = tensor2tensor_step.hparams_of(config.to_dict())
    described = config_from_hparams(parse_hparams("transformer_base") | hparams, 31)
    assert described.to_dict() | {"share_heads": config.share_heads} == config.to_dict()


def test_opennmt_gets_the_same_sentences_in_its_ids():
    features, labels = opennmt_step.their_batch(
        np.array([[5, 1, 0], [4, 4, 1]]), np.array([[3, 1], [1, 0]])
    )
    assert {name: value.tolist() for name, value in features.items()} == {
        "ids": [[6, 2, 0], [5, 5, 2]],
        "length": [2, 3],
    }
    expected = {"ids": [[1, 4], [1, 0]], "ids_out": [[4, 2], [2, 0]], "length": [2, 1]}
    assert {name: value.tolist() for name, value in labels.items()} == expected
