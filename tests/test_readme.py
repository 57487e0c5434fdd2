"""Tests the README's Python code, and that documented commands use existing flags."""

import contextlib
import importlib
import io
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from absl import flags

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
# Pages and scripts with shell commands.
COMMANDS = "".join(
    path.read_text()
    for path in [
        ROOT / "README.md",
        ROOT / "examples/quickstart.sh",
        ROOT / "saved_models/README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
)
PROGRAMS = (
    *("train", "average", "evaluate", "export", "export_ctranslate2"),
    *("translate", "import_t2t", "visualize"),
)


@pytest.mark.slow
def test_readme_example_prints_the_documented_output():
    ((code, output),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue() == output


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


@pytest.mark.parametrize("program", PROGRAMS)
def test_commands_use_existing_flags(program):
    values = flags.FlagValues()
    importlib.import_module(f"trainer.{program}").define_flags(values)
    text = COMMANDS.replace("\\\n", " ")
    lines = re.findall(rf"-m trainer\.{program}\b([^\n|<#`]*)", text)
    used = {name for line in lines for name in re.findall(r"--(\w+)", line)}
    assert lines
    assert used <= {*values, "help"}
