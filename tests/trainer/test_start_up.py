"""Tests of the start of every program: imports, help, messages and errors.

`--help` is tested as a module and as a console script.
"""

import importlib
import importlib.util
import json
import logging
import os
import sys

import pytest
from absl import app, flags
from absl import logging as absl_logging
from subprocesses import environment, run_python

from trainer import entry_point, errors
from trainer.export_ctranslate2 import QUANTIZATIONS
from trainer.recipes import RECIPES

# Runs programs, each in a fork of a process that has imported neither Keras nor NumPy.
RUN_ALL = """
import contextlib, json, os, sys

def run(program):
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with open(reader) as output:
            return output.read()
    with open(writer, "w") as output, contextlib.redirect_stdout(output):
        with contextlib.suppress(SystemExit):
            exec(program, {})
        print("loaded:", *sorted({"keras", "tensorflow", "tensorflow_text"} & sys.modules.keys()))
    os._exit(0)

programs = json.load(sys.stdin)
print(json.dumps({name: run(program) for name, program in programs.items()}))
"""
MODULE = """
import runpy, sys
sys.argv = ["trainer.{name}", "--help"]
runpy.run_module("trainer.{name}", run_name="__main__", alter_sys=True)
"""
SCRIPT = """
import sys
from trainer import entry_point
sys.argv = ["/bin/relpos-" + "{name}".replace("_", "-"), "--help"]
entry_point.run_console_script()
"""
LIST = """
import runpy, sys
sys.argv = ["trainer"]
runpy.run_module("trainer", run_name="__main__", alter_sys=True)
"""
UNKNOWN = """
import runpy, sys
sys.argv = ["trainer.{name}", "{flag}"]
try:
    runpy.run_module("trainer.{name}", run_name="__main__", alter_sys=True)
except SystemExit as stopped:
    print(stopped.code)
"""
# Flags that a program does not have, and the end of the error.
UNKNOWN_FLAGS = {
    ("translate", "--model_dir=runs/x"): "The program reads an exported model: run `python -m "
    "trainer.export --model_dir=...`, then give --saved_model=saved_models/NAME.",
    ("visualize", "--saved_model=x"): "The program reads a model directory: give the exported one.",
    ("evaluate", "--saved_modle=x"): "Did you mean --saved_model?",
    ("average", "--output=x"): "It is a flag of evaluate, translate, visualize. Flags are listed "
    "by --help.",
    ("train", "--log_di=x"): "Flags are listed by --help.",
}
T2T_FLAGS = "--problem=x", "--output_dir=x", "--train_steps=5"
SETTINGS = """
from trainer.config import RunConfig
print(RunConfig(preset="tiny", model_dir="x", data="any").resolve().warmup_steps)
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
# Programs whose console scripts are run.
SCRIPTS = "train", "export_ctranslate2"


@pytest.fixture(scope="module")
def outputs():
    """Returns the outputs of programs, each with a line of the modules that it imported."""
    programs = {"settings": SETTINGS, "list": LIST}
    for name, flag in UNKNOWN_FLAGS:
        programs[f"{name} {flag}"] = UNKNOWN.format(name=name, flag=flag)
    programs["tensor2tensor"] = UNKNOWN.format(name="train", flag='", "'.join(T2T_FLAGS))
    programs |= {f"trainer.{name}": MODULE.format(name=name) for name in FLAG}
    programs |= {f"relpos-{name}": SCRIPT.format(name=name) for name in SCRIPTS}
    done = run_python("-c", RUN_ALL, input=json.dumps(programs))
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", FLAG)
def test_help_imports_neither_keras_nor_tensorflow(name, outputs):
    output = outputs[f"trainer.{name}"]
    assert output.splitlines()[-1] == "loaded:"
    assert f"  {FLAG[name]}:" in output
    assert name not in SCRIPTS or outputs[f"relpos-{name}"] == output


def test_help_lists_settings_and_their_values(outputs):
    for name, text in (
        ("export_ctranslate2", f"Type of the weights: {', '.join(QUANTIZATIONS)}."),
        ("train", "--warmup_steps: Number of warm-up updates,"),
        ("train", "--[no]dry_run: Print settings, parameters, batches"),
        ("train", "python -m trainer.train --preset=tiny"),
        ("train", f"recipe: {', '.join(RECIPES)}."),
    ):
        assert text in " ".join(outputs[f"trainer.{name}"].split())


@pytest.mark.parametrize(("name", "flag"), UNKNOWN_FLAGS)
def test_unknown_flag_has_a_remedy(name, flag, outputs):
    received = f"Expected flags of trainer.{name}. Received: {flag.partition('=')[0]}."
    error, loaded = outputs[f"{name} {flag}"].splitlines()
    assert error == f"trainer.{name}: {received} {UNKNOWN_FLAGS[name, flag]}"
    assert loaded == "loaded:"


def test_flags_of_tensor2tensor_are_answered_together(outputs):
    first, *lines, _, loaded = outputs["tensor2tensor"].splitlines()
    expected = "Expected flags of trainer.train. Received: flags of tensor2tensor. Give instead:"
    assert first == f"trainer.train: {expected}" and loaded == "loaded:"
    assert [line.split()[0] for line in lines] == ["--problem", "--output_dir"]


def test_list_of_programs(outputs):
    _, _, *lines, loaded = outputs["list"].splitlines()
    assert [line.split()[0] for line in lines] == [*entry_point.PROGRAMS] and loaded == "loaded:"
    assert {*entry_point.PROGRAMS} == {*FLAG}
    for line in lines:
        name, text = line.split(maxsplit=1)
        assert outputs[f"trainer.{name}"].startswith(f"{text}\n")


def test_settings_import_neither_keras_nor_tensorflow(outputs):
    assert outputs["settings"] == "2000\nloaded:\n"


def test_without_tensorflow_the_error_names_the_command_that_installs_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    spec = importlib.util.find_spec("trainer")
    start = lambda: spec.loader.exec_module(importlib.util.module_from_spec(spec))
    with pytest.raises(ImportError) as raised:
        start()
    message = (
        "trainer requires tensorflow, which is not installed. Install it and the other "
        "requirements: pip install 't2t-relpos[trainer]'."
    )
    assert raised.value.msg == message
    for name in ("-m", "/bin/relpos-train"):
        monkeypatch.setattr(sys, "argv", [name])
        with pytest.raises(SystemExit) as stopped:
            start()
        assert stopped.value.code == 2 and capsys.readouterr().err == f"{message}\n"


def test_commands_have_the_name_of_the_installed_package(monkeypatch):
    text = "Run `python -m trainer.import_t2t`, or trainer.train."
    assert errors.as_installed(text) == text
    monkeypatch.setattr(errors, "__package__", "t2t_relpos.trainer")
    expected = "Run `python -m t2t_relpos.trainer.import_t2t`, or trainer.train."
    assert errors.as_installed(text) == expected


@pytest.mark.parametrize("name", FLAG)
def test_positional_argument_raises(name):
    with pytest.raises(app.UsageError, match="Expected flags only. Received: 'runs/x'."):
        importlib.import_module(f"trainer.{name}").main([name, "runs/x"], flags.FlagValues())


def test_interrupt_exits_with_one_line(capsys):
    def interrupted(values):
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as stopped:
        entry_point.run("trainer.export", interrupted, ["export"])
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "\ntrainer.export: interrupted.\n"


@pytest.mark.slow
def test_error_is_the_last_line_on_stderr(tmp_path):
    """TensorFlow's import prints lines before."""
    (tmp_path / "text").write_text("A line.\n")
    flags = "--model_dir=.", "--source=text", "--target=text"
    options = {"returncode": 1, "cwd": tmp_path, "env": environment(TF_CPP_MIN_LOG_LEVEL="2")}
    text = run_python("-m", "trainer.evaluate", *flags, **options).stderr
    assert text.splitlines()[-1].startswith("trainer.evaluate: Expected a model directory"), text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("level", "expected"), [(None, "3"), ("1", "1"), ("2", "3")], ids=["unset", "1", "2"]
)
def test_errors_of_onednn_are_hidden_at_level_2(level, expected, tmp_path, monkeypatch):
    (tmp_path / "tensorflow.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "tensorflow")
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    if level:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    entry_point.import_tensorflow()
    assert os.environ.get("TF_CPP_MIN_LOG_LEVEL") == expected
    assert sys.modules["tensorflow"].__file__ == str(tmp_path / "tensorflow.py")


def test_warnings_are_plain_lines():
    handler = absl_logging.get_absl_handler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    entry_point.import_tensorflow()
    message = "Ignoring the corrupt checkpoint %s"
    record = logging.LogRecord("absl", logging.WARNING, "file", 1, message, ("x",), None)
    assert handler.format(record) == "WARNING: Ignoring the corrupt checkpoint x"
