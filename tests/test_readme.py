"""Tests that the README's Python code runs and that its commands use existing flags."""

import importlib
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from absl import flags

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
# Pages and scripts with shell commands.
COMMANDS = README + "".join(
    (ROOT / name).read_text()
    for name in ("docs/training.md", "examples/quickstart.sh", "saved_models/README.md")
)


def test_readme_python_code_trains():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    scope = {}
    exec(code, scope)
    ids = np.array([[5, 7, 9, 0], [3, 2, 1, 4]])
    history = scope["model"].fit(ids, np.array([0.0, 1.0]), epochs=3, verbose=0).history["loss"]
    assert history[-1] < history[0]


def test_readme_replacement_layer_has_the_same_output_shape():
    replaced, replacement = re.findall(r"^[-+](attention = .*)$", README, re.MULTILINE)
    scope = {
        "keras": keras,
        "t2t_relpos": importlib.import_module("t2t_relpos"),
        "x": np.ones((2, 3, 7), "float32"),
    }
    shapes = []
    for line in (replaced, replacement):
        exec(f"{line}\ny = attention(x, x, use_causal_mask=True)", scope)
        shapes.append(tuple(scope["y"].shape))
    assert shapes == [(2, 3, 7), (2, 3, 7)]


@pytest.mark.parametrize(
    "program",
    [
        "train",
        "average",
        "evaluate",
        "export",
        "export_ctranslate2",
        "translate",
        "import_t2t",
        "visualize",
    ],
)
def test_readme_commands_use_existing_flags(program):
    values = flags.FlagValues()
    importlib.import_module(f"trainer.{program}").define_flags(values)
    text = COMMANDS.replace("\\\n", " ")
    lines = re.findall(rf"-m trainer\.{program}\b([^\n|<#]*)", text)
    used = {name for line in lines for name in re.findall(r"--(\w+)", line)}
    assert used
    assert used <= set(values)


def test_readme_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake ([a-z][\w-]*)", README)) - {"and"}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
