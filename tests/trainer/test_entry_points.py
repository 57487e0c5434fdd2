"""Tests of the command line of every program.

`--help` is tested as a module and as a console script.
"""

import importlib
import os

import pytest
from absl import app
from programs import Program
from subprocesses import ROOT, environment, run_python

from trainer import entry_point
from trainer.export_ctranslate2 import QUANTIZATIONS

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
    return run_python("-c", program).stdout


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
    paths = f"{tmp_path}{os.pathsep}{ROOT}"
    done = run_python(*command, returncode=1, env=environment(PYTHONPATH=paths))
    assert f"ImportError: {WITHOUT_TENSORFLOW}" in done.stderr.splitlines()[-1]
    assert (done.stderr.count("\n") == 1) == ("-m" in command)


@pytest.mark.parametrize("name", FLAG)
def test_positional_argument_raises(name):
    with pytest.raises(app.UsageError, match="Expected flags only. Received: 'runs/x'."):
        Program(importlib.import_module(f"trainer.{name}"))(*REQUIRED.get(name, ()), "runs/x")


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("export_ctranslate2", [f"Type of the weights: {', '.join(QUANTIZATIONS)}."]),
        (
            "train",
            [
                "--warmup_steps: Number of warm-up updates,",
                "--[no]dry_run: Print settings, parameters, batches",
                "python -m trainer.train --preset=tiny",
            ],
        ),
    ],
)
def test_help_lists_settings_and_their_values(name, texts):
    output = " ".join(output_of(MODULE.format(name=name)).split())
    for text in texts:
        assert text in output


def test_interrupt_exits_with_one_line(capsys):
    def interrupted(values):
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as stopped:
        entry_point.run("trainer.export", interrupted, ["export"])
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "\ntrainer.export: interrupted.\n"
