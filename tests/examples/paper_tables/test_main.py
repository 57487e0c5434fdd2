"""Tests of `examples.paper_tables`: output, errors and resuming."""

import signal
import subprocess
import time

import pytest
from programs import Program
from subprocesses import python_command

from examples.paper_tables import __main__ as paper_tables

pytestmark = pytest.mark.slow
run = Program(paper_tables)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("table4", "--data=any"), "Expected one of .*. Received: table4."),
        (("table1",), "--data must be a folder of text files"),
        (("table1", "--data=any", "--presets=tinny"), "--presets must be among .*, got tinny."),
        (("table1", "--data=any", "--seeds=1,-2"), "--seeds must be integers >= 0, got 1,-2."),
    ],
)
def test_paper_tables_rejects_invalid_flags(arguments, message, tmp_path):
    run.fails(message, *arguments, f"--output_dir={tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()


def test_paper_tables_reports_errors_of_child_processes(tmp_path):
    message = r"trainer.train failed with exit status 1. Last lines of .*log.txt:(.|\n)*no/such"
    flags = "--data=no/such", "--presets=tiny", "--train_steps=1"
    with pytest.raises(SystemExit, match=message):
        run("table3", *flags, f"--output_dir={tmp_path}")


@pytest.mark.long
def test_paper_tables_resumes_after_kill(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for language, line in (("en", "the {} sees a {}\n"), ("de", "der {} sieht einen {}\n")):
        lines = [line.format(a, b) for a in ("dog", "cat", "bird") for b in ("man", "tree", "cup")]
        for split in ("train", "dev", "test"):
            (text / f"{split}.{language}").write_text("".join(lines))
    command = python_command("-m", "examples.paper_tables", "lengths", f"--data={text}")
    command += [f"--output_dir={tmp_path / 'out'}", "--presets=tiny", "--vocab_size=40"]
    command += ["--batch_tokens=60", "--train_steps=40", "--checkpoint_every=2", "--short=30"]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    trial = tmp_path / "out/trials/tiny-max_length=30-seed=1"
    while not list(trial.glob("model/checkpoints/step-*")):
        assert killed.poll() is None
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    table = (tmp_path / "out/lengths.md").read_text()
    assert finished.stdout.endswith(table + "\n")
    lines = table.splitlines()
    assert lines[0] == "|  | dev, seed 1 | test, seed 1 | steps |"
    labels = [line.split(" | ")[0] for line in lines[2:5]]
    assert labels == ["| relative", "| sinusoidal", "| learned"]
    assert all(line.split(" | ")[3] == "40 |" and "–" not in line for line in lines[2:5])
    # The child process of the killed command may have finished the training.
    assert 1 <= (trial / "log.txt").read_text().count("-m trainer.train ") <= 2
