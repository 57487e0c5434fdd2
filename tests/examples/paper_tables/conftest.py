"""Fixtures: a small dataset, and trials that run a stub in place of the trainer."""

import pytest

from examples.paper_tables import trial as trial_module
from examples.paper_tables.datasets import Dataset
from examples.paper_tables.trial import Trial
from examples.paper_tables.variants import Variant

STUB = """
import pathlib, sys
module, *flags = sys.argv[1:]
values = dict(flag[2:].split("=", 1) for flag in flags)
model = pathlib.Path(values["model_dir"])
model.mkdir(exist_ok=True)
with open(model.parent / "calls", "a") as calls:
    calls.write(" ".join([module, *flags]) + "\\n")
if (model.parent / f"fail {module}").exists():
    sys.exit("first line\\nlast line")
if module == "trainer.evaluate":
    text = pathlib.Path(values["source"]).read_text()
    pathlib.Path(values["output"]).write_text(text.upper())
"""


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with a training, a dev and two test sets in English and German."""
    path = tmp_path / "text"
    path.mkdir()
    for split, count in (("train", 5), ("val", 2), ("test_a", 3), ("test_b", 2)):
        for language in ("en", "de"):
            lines = [f"{split} {language} {n} a b c d\n" for n in range(count)]
            (path / f"{split}.{language}").write_text("".join(lines))
    return path


@pytest.fixture
def dataset(folder):
    return Dataset(str(folder), dev="val", tests=("test_a", "test_b"))


@pytest.fixture
def make_trial(tmp_path, dataset, monkeypatch):
    """Returns `make_trial(overrides, seed)`, which returns a trial that runs the stub."""
    stub = tmp_path / "stub.py"
    stub.write_text(STUB)
    make_command = trial_module._make_command

    def make_stub_command(module, flags):
        python, _, *arguments = make_command(module, flags)
        return [python, str(stub), *arguments]

    def make(overrides=None, seed=3, label="a variant", **settings):
        variant = Variant(label, "tiny", overrides or {}, {"newstest": 25.5})
        settings = {"train_steps": 7} | settings
        trial = Trial(variant, seed, settings, dataset, tmp_path / "trials")
        trial.folder.mkdir(parents=True, exist_ok=True)
        return trial

    monkeypatch.setattr(trial_module, "_make_command", make_stub_command)
    return make


@pytest.fixture
def calls():
    """Returns `calls(trial)`: the commands (module and flags) that the trial ran."""

    def read(trial):
        file = trial.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    return read
