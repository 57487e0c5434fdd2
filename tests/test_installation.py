"""Tests the installed wheel beside another package whose name is `trainer`."""

import shutil

import pytest
from subprocesses import ROOT, environment, run_python

pytestmark = pytest.mark.slow
FILES = "LICENSE", "NOTICE", "README.md", "pyproject.toml", "setup.cfg"
IMPORTS = """
import importlib, pkgutil, sys
import t2t_relpos.trainer.translate, trainer
assert trainer.OWNER == "another package" and "keras" not in sys.modules
# Modules of other backends, and programs, which define their flags when they are run.
optional = "__main__", "jax", "torch", "flash", "fused", "kernels", "exchange", "comparison"
for module in pkgutil.walk_packages(t2t_relpos.__path__, "t2t_relpos."):
    if not module.name.endswith(optional) and ".families." not in module.name:
        importlib.import_module(module.name)
"""
TRAIN = (
    *("--preset=tiny", "--model_dir=run", "--train_source=text", "--train_target=text"),
    *("--vocab_size=60", "--train_steps=1", "--batch_tokens=64", "--max_length=16"),
)


@pytest.fixture(scope="module")
def run_installed(tmp_path_factory):
    """Returns a function that runs Python in a folder, with the wheel and another `trainer`."""
    folder = tmp_path_factory.mktemp("installed")
    site, work = folder / "site", folder / "work"
    for package in ("t2t_relpos", "trainer"):
        shutil.copytree(ROOT / package, folder / "source" / package)
    for name in FILES:
        shutil.copy(ROOT / name, folder / "source")
    build = "--no-deps", "--no-build-isolation", "--wheel-dir", folder, folder / "source"
    run_python("-m", "pip", "wheel", *build)
    (wheel,) = folder.glob("*.whl")
    run_python("-m", "pip", "install", "--no-deps", "--target", site, wheel)
    (site / "trainer").mkdir()
    (site / "trainer/__init__.py").write_text("OWNER = 'another package'\n")
    work.mkdir()

    def run(*arguments, **options):
        options = {"cwd": work, "env": environment(PYTHONPATH=str(site))} | options
        if arguments[0].startswith("relpos-"):
            arguments = site / "bin" / arguments[0], *arguments[1:]
        return run_python(*arguments, **options)

    run.folder = work
    return run


def test_every_module_is_imported(run_installed):
    run_installed("-c", IMPORTS)


def test_commands_in_messages_work_in_the_installed_package(run_installed):
    programs = run_installed("-m", "t2t_relpos.trainer").stdout
    assert programs.startswith("Start a program with `python -m t2t_relpos.trainer.NAME`.")
    error = run_installed("relpos-translate", "--saved_model=absent", returncode=1).stderr
    error = error.splitlines()[-1]  # TensorFlow's import prints lines before.
    assert error.startswith("trainer.translate: Expected the directory of a SavedModel")
    assert error.endswith("Write one with `python -m t2t_relpos.trainer.export`.")


def test_console_script_trains(run_installed):
    text = "".join(f"A line with the number {number}.\n" for number in range(50))
    (run_installed.folder / "text").write_text(text)
    trained = run_installed("relpos-train", *TRAIN).stdout
    assert trained.splitlines()[-1] == "Trained model: run/model.keras (step 1)"
