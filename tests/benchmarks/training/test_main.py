"""Tests of the training benchmark with tiny sizes."""

import gzip

import pytest

from examples.synthetic_corpus import generate


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder, pairs = tmp_path_factory.mktemp("texts"), generate("train", size=97)
    with gzip.open(folder / "source.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{source}\n" for source, _ in pairs)
    (folder / "target").write_text("".join(f"{target}\n" for _, target in pairs), encoding="utf-8")
    return f"--train_source={folder}/source.gz", f"--train_target={folder}/target"


@pytest.mark.slow
def test_training_benchmark_measures_all_systems(run, read_csv, texts, tmp_path):
    sizes = ["--vocab_size=151", "--batch_tokens=67", "--steps=1", "--runs=2", "--threads=1,2"]
    files = [*texts, f"--csv={tmp_path}/table.csv"]
    done = run("training", *files, *sizes, "--env=MALLOC_ARENA_MAX=1")
    assert done.returncode == 0, done.stderr
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


@pytest.mark.slow
def test_training_benchmark_always_includes_the_trainer(run_table):
    sizes = ["--vocab_size=331", "--batch_tokens=67", "--steps=1", "--runs=1"]
    _, *rows = run_table("training", "--systems=trainer bfloat16", *sizes)
    assert [row[1] for row in rows] == ["trainer", "trainer bfloat16", "matmul"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "flag, message",
    [
        ("--preset=transformer_base", "flag --preset=transformer_base: value should be one of"),
        ("--train_source=x", "or neither. Missing: --train_target."),
        ("--env==x", "--env must be NAME=VALUE. Received: '=x'."),
    ],
)
def test_training_benchmark_rejects_invalid_flags(usage_error, flag, message):
    assert message in usage_error("training", flag)


@pytest.mark.slow
def test_training_benchmark_reports_a_missing_file(usage_error):
    flags = "--train_source=/none/x", "--train_target=/none/x"
    assert "/none/x" in usage_error("training", *flags)
