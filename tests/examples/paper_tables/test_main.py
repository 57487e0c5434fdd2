"""`examples.paper_tables`: tables of rows that are trained, and what is refused."""

import signal
import subprocess
import sys
import time

import pytest
from absl import flags

from examples.paper_tables import __main__ as experiments


def run(*arguments):
    """Runs the program in this process."""
    values = flags.FlagValues()
    experiments.define_flags(values)
    experiments.main(values(["experiments", *arguments]), values)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((), "Expected one of table1, table2, table3, positions, lengths. Received: none."),
        (("table4", "--data=synthetic"), "Expected one of .*. Received: table4."),
        (("table1",), "Expected --data. Received: none. Give a folder of text files"),
        (
            ("table1", "--data=synthetic", "--presets=tinny"),
            "Expected presets out of .*. Received: tinny. Correct --presets.",
        ),
        (
            ("table1", "--data=synthetic", "--presets=transformer_base"),
            "Expected presets with relative positions",
        ),
        (
            ("table1", "--data=synthetic", "--seeds=1,-2"),
            "Expected seeds, whole numbers from 0. Received: 1,-2. Correct --seeds.",
        ),
        (
            ("table1", "--data=synthetic", "--direction=de"),
            "Expected a direction such as en-de. Received: 'de'",
        ),
    ],
)
def test_errors(arguments, message, tmp_path):
    with pytest.raises(SystemExit, match="paper_tables: " + message):
        run(*arguments, f"--output_dir={tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()


def test_a_process_that_fails(tmp_path):
    """Its last words are those of the program."""
    with pytest.raises(
        SystemExit,
        match=r"Expected trainer.train to succeed. Received: exit status 1, and in .*log.txt:(.|\n)*no/such",
    ):
        run(
            "table3",
            "--data=no/such",
            "--presets=tiny",
            "--train_steps=1",
            f"--output_dir={tmp_path}",
        )


@pytest.mark.slow
def test_killed_and_gone_on_with(tmp_path, small_run):
    """Killed inside a row, and the same command makes the rest; the table has all rows."""
    text = tmp_path / "text"
    text.mkdir()
    for name, lines in (("en", small_run.source), ("de", small_run.target)):
        for split in ("train", "dev", "test"):
            (text / f"{split}.{name}").write_text("\n".join(lines) + "\n")
    flags = [
        "--presets=tiny",
        "--vocab_size=40",
        "--batch_tokens=60",
        "--train_steps=40",
        "--checkpoint_every=2",
        "--short=30",
    ]
    command = [
        sys.executable,
        "-m",
        "examples.paper_tables",
        "lengths",
        f"--data={text}",
        f"--output_dir={tmp_path / 'out'}",
        *flags,
    ]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    checkpoints = tmp_path / "out/rows/tiny-max_length=30-seed=1/model/checkpoints"
    while not list(checkpoints.glob("step-*")):
        assert killed.poll() is None
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    table = (tmp_path / "out/lengths.md").read_text()
    assert finished.stdout.endswith(table + "\n")
    lines = table.splitlines()
    assert lines[0] == "|  | dev, seed 1 | test, seed 1 | steps | minutes |"
    assert [line.split(" | ")[0] for line in lines[2:5]] == [
        "| relative",
        "| sinusoidal",
        "| learned",
    ]
    assert all(line.split(" | ")[3] == "40" and "–" not in line for line in lines[2:5])
    csv = (tmp_path / "out/lengths.csv").read_text().splitlines()
    assert len(csv) == 1 + 3 * (2 + 5)
    # A row's training was started twice at most: by the killed command, and by the second if the first's did not outlive it.
    log = (tmp_path / "out/rows/tiny-max_length=30-seed=1/log.txt").read_text()
    assert 1 <= log.count("-m trainer.train ") <= 2 and log.count("Training from step 0 ") == 1
