"""Tests of `examples.paper_tables`: runs with a stub for the trainer."""

import sys

import pytest
from programs import Program

from examples.paper_tables import __main__ as paper_tables
from examples.paper_tables import trial

# Writes the reference as the translation, without the last word of models without tables.
STUB = """
import pathlib, sys
module, *flags = sys.argv[1:]
values = dict(flag[2:].split("=", 1) for flag in flags)
model = pathlib.Path(values["model_dir"])
model.mkdir(exist_ok=True)
with open(model.parent / "calls", "a") as calls:
    calls.write(" ".join([module, *flags]) + "\\n")
if module == "trainer.evaluate":
    lines = pathlib.Path(values["target"]).read_text().splitlines()
    if "position=none" in values["model_dir"]:
        lines = [line[:-2] for line in lines]
    pathlib.Path(values["output"]).write_text("".join(f"{line}\\n" for line in lines))
"""


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with a training, a dev and a test set in English and German."""
    path = tmp_path / "text"
    path.mkdir()
    for split, count in (("train", 5), ("dev", 2), ("test", 3)):
        for language in ("en", "de"):
            lines = [f"{split} {language} {n} a b c d\n" for n in range(count)]
            (path / f"{split}.{language}").write_text("".join(lines))
    return path


def test_run_writes_a_table_and_repeats_nothing(folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "stub.py").write_text(STUB)
    make_command = trial._make_command

    def make_stub_command(module, flags):
        python, _, *arguments = make_command(module, flags)
        return [python, str(tmp_path / "stub.py"), *arguments]

    monkeypatch.setattr(trial, "_make_command", make_stub_command)
    arguments = "table3", "--presets=tiny", "--train_steps=7", "--seeds=3"
    for _ in range(2):
        Program(paper_tables)(*arguments, data=folder, output_dir=tmp_path / "out")
    table = (tmp_path / "out/table3.md").read_text()
    assert capsys.readouterr().out.endswith(f"{table}\n")
    cells = [line.split(" | ")[:4] for line in table.splitlines()[:6]]
    assert cells[0] == ["| ", "paper: newstest2013 en-de", "dev, seed 3", "test, seed 3"]
    assert cells[2:] == [
        ["| a^V and a^K", "25.8", "100.0", "100.0"],
        ["| a^V only", "25.3", "100.0", "100.0"],
        ["| a^K only", "25.8", "100.0", "100.0"],
        ["| neither", "12.5", "84.6", "84.6"],
    ]
    calls = (tmp_path / "out/trials/tiny-use_key_table=false-seed=3/calls").read_text().splitlines()
    model = f"--model_dir={tmp_path}/out/trials/tiny-use_key_table=false-seed=3/model"
    files = [
        f"--{split}_{side}={folder}/{split}.{language}"
        for split in ("train", "dev")
        for side, language in (("source", "en"), ("target", "de"))
    ]
    settings = "--train_steps=7", "--precision=float32", "--use_key_table=false", "--seed=3"
    assert calls[0].split() == ["trainer.train", "--preset=tiny", model, *files, *settings]
    assert [call.split()[0] for call in calls[1:]] == ["trainer.evaluate"] * 2


def test_errors_of_a_child_process_are_reported(tmp_path, monkeypatch):
    (tmp_path / "stub.py").write_text("import sys; sys.exit('no such file')")
    make_command = lambda module, flags: [sys.executable, str(tmp_path / "stub.py"), module]
    monkeypatch.setattr(trial, "_make_command", make_command)
    message = (
        r"trainer.train failed with exit status 1. Last lines of .*log.txt:(.|\n)*no such file"
    )
    flags = "--data=no/such", "--presets=tiny", "--train_steps=1"
    Program(paper_tables).fails(message, "table3", *flags, f"--output_dir={tmp_path}")
