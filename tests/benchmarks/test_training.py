"""Tests of the training benchmark with tiny sizes: batches, FLOPs, other systems and profiles."""

import gzip
import re

import numpy as np
import pytest
from benchmark_runs import read_csv, run
from programs import loaded

from benchmarks.training import batches, matmul_rate, opennmt_step, tensor2tensor_step
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
    done = run("training", *files, csv, *sizes, "--env=MALLOC_ARENA_MAX=1")
    for name in ("opennmt", "tensor2tensor"):
        assert f"Skipping {name}: no Python at --{name}_python=None." in done.stderr
    rows = read_csv(tmp_path / "table.csv")
    systems = ["trainer", "trainer bfloat16", "trainer sinusoidal", "matmul"]
    cases = [(threads, system) for threads in "12" for system in systems]
    assert [(row["threads"], row["system"]) for row in rows] == cases
    for row in rows:
        system = row.pop("system")
        numbers = {name: float(value) for name, value in row.items()}
        assert 0 < numbers["tokens/s low"] <= numbers["tokens/s"] <= numbers["tokens/s high"]
        assert (numbers["time / trainer low"] == numbers["time / trainer"] == 1) == (
            system == "trainer"
        )
        assert (numbers["matmul share"] == 1) == (system == "matmul")
        assert numbers["GFLOP/s"] > 0
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
    assert batches.count_tokens([(INPUTS, TARGETS)]) == {"source": 5, "target": 3}


@pytest.mark.parametrize("width, inner", [(12, 17), (12, 12), (12, 36)])
def test_count_weights_counts_each_matrix_once(width, inner):
    config = TransformerConfig(hidden_dim=width, intermediate_dim=inner, **SIZES)
    counts = matmul_rate.count_weights(config.to_dict())
    elements = sum(count * rows * columns for (_, rows, columns), count in counts.items())
    model = Transformer(config)
    ids = np.ones((1, 1), "int32")
    model({"inputs": ids, "targets": ids})
    # Relative-position tables are not counted.
    matrices = [w for w in model.weights if len(w.shape) > 1 and "table" not in w.path]
    assert elements == sum(int(np.prod(weight.shape)) for weight in matrices)


def test_count_flops_of_a_training_step():
    config = TransformerConfig(hidden_dim=12, intermediate_dim=17, **SIZES).to_dict()
    source = matmul_rate.count_flops(config, {"source": 1, "target": 0})
    target = matmul_rate.count_flops(config, {"source": 0, "target": 1})
    # Each weight is used in three products (the forward pass and two gradients) of two FLOPs each.
    assert source == 6 * (2 * (4 * 12 * 12 + 2 * 12 * 17) + 3 * 2 * 12 * 12)
    assert target == 6 * (3 * (6 * 12 * 12 + 2 * 12 * 17) + 31 * 12)
    assert matmul_rate.count_flops(config, {"source": 5, "target": 7}) == 5 * source + 7 * target


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


def test_sum_by_op_type_sums_times_and_executions():
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    profile = xplane_pb2.XSpace()
    plane = profile.planes.add()
    line = plane.lines.add()
    events = {
        "model/dense/MatMul:MatMul": 3 * 10**12,
        "model/other/MatMul:MatMul#id=5#": 2 * 10**12,
        "add:AddV2": 7 * 10**11,
        "ExecutorState::Process": 10**13,
        "multi_step_on_iterator": 10**13,
    }
    for number, (name, picoseconds) in enumerate(events.items()):
        plane.event_metadata[number].name = name
        line.events.add(metadata_id=number, duration_ps=picoseconds)
    with loaded("benchmarks.training.op_profile") as op_profile:
        seconds, executions = op_profile.sum_by_op_type(profile)
    assert dict(seconds) == {"MatMul": 5.0, "AddV2": 0.7}
    assert dict(executions) == {"MatMul": 2, "AddV2": 1}


def test_op_profile_rows_sum_to_the_step_time():
    sizes = ["--vocab_size=331", "--batch_tokens=67", "--steps=2", "--rows=3"]
    lines = run("training.op_profile", *sizes, "--position=sinusoidal").stdout.splitlines()
    step = float(re.fullmatch(r"tiny, sinusoidal, (\d+) ms/step, \d+ tokens/step", lines[0])[1])
    rows = [line.strip("| ").split(" | ") for line in lines[4:]]
    assert len(rows) == 5
    assert "other types" in rows[3][0]
    assert rows[4][0] == "outside ops"
    assert sum(float(row[-2]) for row in rows) == pytest.approx(step, abs=0.8)
    assert sum(float(row[-1].rstrip("%")) for row in rows) == pytest.approx(100, abs=0.4)
