"""Tests of `make gpu-check` on the CPU, with tiny sizes."""

import re

import keras
import pytest
from absl import flags
from benchmark_runs import run
from programs import loaded
from subprocesses import environment, run_python

from benchmarks.workers import take_turns
from t2t_relpos.models import PRESETS

SIZES = ["--lengths=8,5,11", "--batch_tokens=16"]
SIZES += ["--vocab_size=11", "--pairs=2", "--pair_length=4"]
# The smallest preset takes long to compile.
ONE_LAYER = {"num_encoder_layers": 1, "num_decoder_layers": 1, "num_heads": 2}
ONE_LAYER |= {"hidden_dim": 8, "intermediate_dim": 11}
FLASH = [] if keras.backend.backend() == "tensorflow" else ["flash"]
NAMES = [*FLASH, "relative", "relative_linear", "plain"]
CORE_NAMES = NAMES
if keras.backend.backend() == "torch":
    CORE_NAMES = ["flash", "row_flash", "relative", "plain"]


@pytest.fixture
def check(monkeypatch):
    """Returns the module of the program, with tiny sizes."""
    monkeypatch.setitem(PRESETS, "one_layer", PRESETS["tiny"] | ONE_LAYER)
    with loaded("benchmarks.accelerator.check") as program:
        flags.FLAGS(["check", *SIZES, "--preset=one_layer"])
        yield program


def table(text):
    """Returns the cells of the rows of a Markdown table, without its header."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_without_a_gpu_it_says_so_and_exits_with_2(check, monkeypatch, capsys):
    monkeypatch.setattr(check, "device", lambda: "cpu")
    with pytest.raises(SystemExit) as error:
        check.main(["check"])
    assert error.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(
        f"No GPU found by the Keras backend {keras.backend.backend()}. Install a build of the "
    )


@pytest.mark.slow
def test_rows_of_attention_and_training(check, capsys):
    checked = check.Check(1000.0)
    comparisons = check.comparisons()[3:6]
    checked.compare(comparisons)
    rows = table(capsys.readouterr().out)
    assert [row[:5] for row in rows] == [
        *([["layer", "causal", "bfloat16", "5", "3"]] * len(NAMES)),
        *([["training", "", "bfloat16", "4", "2"]] * 2),
        *([["core", "bidirectional", "bfloat16", "8", "2"]] * len(CORE_NAMES)),
    ]
    names = [row[5].split(" ")[0] for row in rows]
    assert sorted(names[: -len(CORE_NAMES)]) == sorted([*NAMES, "plain", "relative"])
    assert sorted(names[-len(CORE_NAMES) :]) == sorted(CORE_NAMES)
    used = {row[5].split(" ")[0]: row[5].partition(" ")[2] for row in rows[: len(NAMES)]}
    assert used["plain"] == "" and "rows" in used["relative"]
    assert re.fullmatch(r"\(\w+\)", used["relative_linear"])
    assert used["relative_linear"] != used["relative"]
    for part, _, _, _, _, name, milliseconds, over_plain, over_flash, _, _, rate, _ in rows:
        ratios = [text for text in (over_plain, over_flash) if text]
        assert len(ratios) == (1 if part == "training" else 1 + len(FLASH))
        for text in ratios:
            median, low, high = map(float, re.findall(r"\d+\.\d+", text))
            assert 0 < low <= median <= high
        assert float(milliseconds) > 0
        assert (int(rate.replace(",", "") or 0) > 0) == (part == "training")
        if name.startswith("plain"):
            assert over_plain == "1.00 (1.00 – 1.00)"
    assert checked.failed == checked.left_out == []


SETTINGS = "core", "causal", "bfloat16", 7, 3


def failing():
    raise MemoryError("too little:\n1 | 2")


def test_failures_and_what_the_budget_leaves_out_are_named(check, monkeypatch, capsys):
    """The time ends while the third implementation is prepared."""
    left = iter(3 * [1.0] + 10 * [-1.0])
    monkeypatch.setattr(check.Check, "seconds_left", property(lambda self: next(left)))
    makers = dict.fromkeys(("plain", "relative_linear"), failing)
    makers |= dict.fromkeys(("relative", "flash"), lambda: lambda: None)
    checked = check.Check(1000.0)
    training = "training", "", "bfloat16", 4, 2
    checked.compare([check.Comparison(SETTINGS, makers), check.Comparison(training, makers)])
    *failures, measured = [row[5:7] for row in table(capsys.readouterr().out)]
    message = "MemoryError: too little: 1 2"
    assert failures == [["plain", message], ["relative_linear", message]]
    assert measured[0] == "relative" and float(measured[1]) >= 0
    checked.report()
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "Failed: core causal 7 relative_linear.",
        "Not measured: core causal 7 flash; training 4.",
    ]


@pytest.mark.parametrize(
    ("seconds", "runs", "turns"), [(0.0, 5, 3), (1000.0, 5, 5), (0.0, 2, 2), (0.0, 3, 3)]
)
def test_take_turns_ends_after_a_turn_of_all(seconds, runs, turns):
    called = []
    steps = {name: lambda name=name: called.append(name) for name in "abc"}
    times = take_turns(steps, runs, seconds)
    assert {name: len(found) for name, found in times.items()} == dict.fromkeys("abc", turns)
    assert sorted(called) == sorted(turns * "abc")
    assert min(min(found) for found in times.values()) >= 0


@pytest.mark.long
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_program_needs_no_tensorflow(backend, tmp_path, monkeypatch):
    pytest.importorskip(backend)
    hidden = "import sys\nsys.modules['tensorflow'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(hidden)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("KERAS_BACKEND", backend)
    flags_of_run = ["--allow_cpu", *SIZES, "--preset=tiny", "--lengths=8", "--budget_s=900"]
    output = run("accelerator.check", *flags_of_run).stdout
    assert output.startswith(f"CPU, {backend} ") and " 16 passed" in output
    assert len(table(output)) == 4 * 4 + 2
    assert "Failed: nothing.\nNot measured: nothing.\n" in output


ONLY_TRAINING = f"""
from absl import app
from benchmarks.accelerator import check
from t2t_relpos.models import PRESETS
PRESETS["one_layer"] = PRESETS["tiny"] | {ONE_LAYER}
check.RUNS = 4
check.Check.run_tests = check.Check.compare = lambda *_: None
app.run(check.main)
"""


@pytest.mark.long
def test_training_on_two_devices_of_tensorflow():
    pytest.importorskip("tensorflow")
    sizes = [*SIZES, "--pairs=3", "--preset=one_layer", "--logical_gpus=2", "--budget_s=900"]
    variables = environment(KERAS_BACKEND="tensorflow", CUDA_VISIBLE_DEVICES="")
    variables["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # Compiles faster.
    output = run_python("-c", ONLY_TRAINING, "--allow_cpu", *sizes, env=variables).stdout
    rows = table(output)
    assert [row[:2] for row in rows] == [["1", "no"], ["2", "no"], ["2", "yes"], ["1", "yes"]]
    assert [row[5] for row in rows] == ["0", "0", "2", "1"]
    for row in rows:
        first, last, difference = map(float, row[2:5])
        assert last < first < 4 and difference < 1e-5
        assert all(float(cell.replace(",", "")) > 0 for cell in row[6:9])
        assert "rows" in row[9].split(", ")
    assert "Failed: nothing.\nNot measured: nothing.\n" in output
