"""Small sets of sentences, and trials whose processes are a program that only notes what it was told."""

import sys
from pathlib import Path

import pytest

from examples.paper_tables import trial as trials
from examples.paper_tables.datasets import Sentences
from examples.paper_tables.trial import Trial
from examples.paper_tables.variants import Row

PROGRAM = """
import pathlib, sys, time
module, *flags = sys.argv[1:]
values = dict(flag[2:].split("=", 1) for flag in flags)
model = pathlib.Path(values["model_dir"])
model.mkdir(exist_ok=True)
with open(model.parent / "calls", "a") as calls:
    calls.write(" ".join([module, *flags]) + "\\n")
time.sleep(float((model.parent / "sleep").read_text()) if (model.parent / "sleep").exists() else 0)
if (model.parent / f"no {module}").exists():
    sys.exit("first line\\nno luck")
if module == "trainer.evaluate":
    text = pathlib.Path(values["source"]).read_text()
    pathlib.Path(values["output"]).write_text(text.upper())
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with train, val and two test sets, en and de."""
    path = tmp_path / "text"
    path.mkdir()
    for split, count in (("train", 5), ("val", 2), ("test_a", 3), ("test_b", 2)):
        for language in ("en", "de"):
            (path / f"{split}.{language}").write_text(
                "".join(f"{split} {language} {n} a b c d\n" for n in range(count))
            )
    return path


@pytest.fixture
def sentences(folder):
    return Sentences(str(folder), dev="val", tests=("test_a", "test_b"))


@pytest.fixture
def make_trial(tmp_path, sentences, monkeypatch):
    """`make_trial(changes, seed)`: a trial in a folder that is there, whose processes are PROGRAM."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def command(module, settings):
        return [
            sys.executable,
            str(program),
            module,
            *(f"--{name}={trials._text(value)}" for name, value in settings.items()),
        ]

    def make(changes={}, seed=3, label="a row", **settings):
        row = Row(label, "tiny", changes, {"newstest": 25.5})
        made = Trial(row, seed, {"train_steps": 7} | settings, sentences, tmp_path / "rows")
        made.folder.mkdir(parents=True, exist_ok=True)
        return made

    monkeypatch.setattr(trials, "_command", command)
    return make


def calls(trial) -> list[str]:
    """Which programs were called, with their flags."""
    file = Path(trial.folder / "calls")
    return file.read_text().splitlines() if file.exists() else []
