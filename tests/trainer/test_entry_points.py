"""Tests of the command line of every program.

`--help` is tested as a module and as a console script.
"""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from absl import app

from trainer import entry_point
from trainer.export_ctranslate2 import QUANTIZATIONS

ROOT = Path(__file__).parents[2]
MODULE = """
import runpy, sys
sys.argv = ["trainer.{name}", "--help"]
try:
    runpy.run_module("trainer.{name}", run_name="__main__", alter_sys=True)
except SystemExit:
    print("loaded:", *sorted({{"keras", "tensorflow", "tensorflow_text"}} & sys.modules.keys()))
"""
SCRIPT = """
import sys
from trainer import console
sys.argv = ["relpos-{name}", "--help"]
try:
    console.{name}()
except SystemExit:
    print("loaded:", *sorted({{"keras", "tensorflow", "tensorflow_text"}} & sys.modules.keys()))
"""
# One flag of each program.
FLAG = {
    "train": "--warmup_steps",
    "average": "--output_dir",
    "evaluate": "--saved_model",
    "export": "--max_beam_size",
    "export_ctranslate2": "--quantization",
    "translate": "--nbest",
    "import_t2t": "--hparams_set",
    "visualize": "--plots",
}
# Flags that absl requires.
REQUIRED = {
    "average": ["--model_dir=any", "--output_dir=any"],
    "visualize": ["--model_dir=any"],
    "export": ["--model_dir=any"],
    "export_ctranslate2": ["--model_dir=any", "--output_dir=any"],
    "translate": ["--saved_model=any"],
    "import_t2t": ["--checkpoint=any", "--hparams_set=any", "--model_dir=any"],
}


WITHOUT_TENSORFLOW = (
    "trainer requires TensorFlow, which is not installed. Install it and the other requirements "
    "with `pip install t2t_relpos`."
)


def output_of(program):
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize("name", FLAG)
def test_help_imports_neither_keras_nor_tensorflow(name):
    of_module, of_script = (output_of(text.format(name=name)) for text in (MODULE, SCRIPT))
    for output in (of_module, of_script):
        assert output.splitlines()[-1] == "loaded:"
        assert f"  {FLAG[name]}:" in output
    assert of_module == of_script


@pytest.mark.parametrize("command", [["-c", "import trainer"], ["-m", "trainer.train", "--help"]])
def test_without_tensorflow_the_error_names_the_command_that_installs_it(command, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['tensorflow'] = None\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, *command]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"ImportError: {WITHOUT_TENSORFLOW}" in done.stderr.splitlines()[-1]
    assert (done.stderr.count("\n") == 1) == ("-m" in command)


@pytest.mark.parametrize("name", FLAG)
def test_positional_argument_raises(program, name):
    with pytest.raises(app.UsageError, match="Expected flags only. Received: 'runs/x'."):
        program(importlib.import_module(f"trainer.{name}"))(*REQUIRED.get(name, ()), "runs/x")


def test_help_lists_all_quantizations():
    output = output_of(MODULE.format(name="export_ctranslate2"))
    text = " ".join(output.split())
    assert f"Type of the weights: {', '.join(QUANTIZATIONS)}." in text


def test_interrupt_exits_with_one_line(capsys):
    def interrupted(values):
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as stopped:
        entry_point.run("trainer.export", interrupted, ["export"])
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "\ntrainer.export: interrupted.\n"
