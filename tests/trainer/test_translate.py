import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from absl import app, flags

from trainer import translate
from trainer.serving.translator import Translation

ROOT = Path(__file__).parents[2]

# Runs the program where what it must not need can't be imported, and says which of this project's modules it used.
PROGRAM = """
import importlib.abc, runpy, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("t2t_relpos", "sentencepiece", "sacrebleu", "tensorflow_datasets"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
modules, sys.argv[1:] = sys.argv[1], sys.argv[2:]
try:
    runpy.run_module("trainer.translate", run_name="__main__", alter_sys=True)
finally:
    with open(modules, "w") as file:
        file.write(" ".join(sorted(name for name in sys.modules if name.split(".")[0] in ("trainer", "t2t_relpos"))))
"""


def run(*arguments):
    """Runs the program in this process."""
    values = flags.FlagValues()
    translate.define_flags(values)
    translate.main(values(["translate", *arguments]), values)


def shout(sentences):
    return [Translation(sentence.upper(), -1.0, len(sentence) > 6) for sentence in sentences]


class Target(io.BytesIO):
    """Counts flushes."""

    flushes = 0

    def flush(self):
        self.flushes += 1


def test_lines_in_lines_out_in_a_process_of_its_own(exported_dir, exported, sentences, tmp_path):
    lines = [*(sentence.encode() for sentence in sentences), b"", b"bad \xff bytes", b"house " * 10_000, b"the end"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "modules"), f"--saved_model={exported_dir}", "--batch_size=3"],
        input=b"\n".join(lines),
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.split(b"\n") == [answer.text for answer in exported(lines)] + [b""]
    warnings = [line for line in done.stderr.decode().splitlines() if line.startswith("warning: ")]
    assert warnings == ["warning: line 14 is longer than the model takes: only its beginning was translated."]
    used = set((tmp_path / "modules").read_text().split())
    assert used <= {
        "trainer",
        "trainer.atomic_files",
        "trainer.serving",
        "trainer.serving.saved_models",
        "trainer.serving.translator",
        "trainer.translate",
    }


def test_file_to_file(exported_dir, exported, sentences, tmp_path):
    (tmp_path / "in").write_bytes("\r\n".join([*sentences, "", "x"]).encode())
    run(f"--saved_model={exported_dir / '1'}", f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}", "--window=5")
    assert (tmp_path / "out").read_bytes().split(b"\n") == [a.text for a in exported([*sentences, "", "x"])] + [b""]


def test_warnings_name_the_lines_that_were_cut():
    log, target = io.StringIO(), Target()
    lines = [b"one\n", b"a long one\r\n", b"\n", b"another long one"]
    assert translate.translate(shout, io.BytesIO(b"".join(lines)), target, batch_size=2, window=3, log=log) == 4
    assert target.getvalue() == b"ONE\nA LONG ONE\n\nANOTHER LONG ONE\n"
    assert re.findall(r"line (\d+)", log.getvalue()) == ["2", "4"]


def test_output_is_flushed_after_every_window():
    target = Target()
    translate.translate(shout, io.BytesIO(b"a\n" * 10), target, batch_size=2, window=3)
    assert target.flushes == 3 + 1


def test_no_input_no_output():
    target = Target()
    assert translate.translate(shout, io.BytesIO(b""), target, batch_size=2, window=3) == 0
    assert target.getvalue() == b""


def refused(message, *arguments):
    with pytest.raises(SystemExit, match=message):
        run(*arguments)


def test_saved_model_that_is_missing(tmp_path):
    (tmp_path / "in").write_text("a\n")
    refused(
        r"trainer.translate: Expected the directory of a SavedModel, .* Received: .*/absent, which does not exist. Write",
        f"--saved_model={tmp_path / 'absent'}",
        f"--input={tmp_path / 'in'}",
        f"--output={tmp_path / 'out'}",
    )
    assert not (tmp_path / "out").exists()


def test_input_that_can_not_be_read(tmp_path):
    message = r"Expected a file that can be read. Received: .*/absent \(No such file or directory\)\."
    refused(message, "--saved_model=any", f"--input={tmp_path / 'absent'}")


def test_output_that_can_not_be_written(exported_dir, tmp_path):
    (tmp_path / "in").write_text("a\n")
    message = r"Expected a file that can be written. Received: .*/absent/out \(No such file or directory\)\."
    refused(message, f"--saved_model={exported_dir}", f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'absent/out'}")


def test_output_that_is_the_input(tmp_path):
    (tmp_path / "in").write_text("a\n")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    message = "Expected --output to be another file than --input, which it would overwrite. Received: .*/link."
    refused(message, "--saved_model=any", f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'link'}")
    assert (tmp_path / "in").read_text() == "a\n"


def test_text_on_the_command_line():
    with pytest.raises(app.UsageError, match="Expected the text in --input or on the standard input. Received: 'Hello'."):
        run("--saved_model=any", "Hello")


def test_reader_that_stops_early(exported_dir, tmp_path):
    (tmp_path / "in").write_text("a\n" * 30_000)
    command = f"{sys.executable} -m trainer.translate --saved_model={exported_dir} --input={tmp_path / 'in'} --window=7 | head -n 2"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=300,
    )
    assert done.returncode == 0 and done.stdout.count(b"\n") == 2
    assert b"Error" not in done.stderr
