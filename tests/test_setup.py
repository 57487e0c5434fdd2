"""Tests of setup.cfg."""

import ast
import configparser
import importlib.metadata
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCAL = {"t2t_relpos", "trainer", "benchmarks", "examples", "tests"}
# `make test-backends` installs these. The extra `test` does not include them.
BACKENDS = {"jax", "torch"}


def normalize(name):
    return re.sub("[-_.]+", "-", name).lower()


def imported_modules(path):
    """Yields the first component of every absolute import of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.split(".")[0]


def test_setup_requires_all_packages_that_tests_import():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    text = config["options"]["install_requires"] + config["options.extras_require"]["test"]
    required = {normalize(name) for name in re.findall(r"^([\w.-]+)[><=]", text, re.MULTILINE)}
    # TensorFlow chooses the version of protobuf: its generated code works with few of them.
    required |= {"protobuf"}
    # The recorders in tests/reference run in the environment of tensor2tensor.
    files = [path for path in (ROOT / "tests").rglob("*.py") if "reference" not in path.parts]
    local = LOCAL | {path.stem for path in (ROOT / "tests").rglob("*")}
    distributions = importlib.metadata.packages_distributions()
    missing = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in files
        for module in imported_modules(path)
        if module not in sys.stdlib_module_names | local | BACKENDS
        and not required & {normalize(name) for name in distributions.get(module, [])}
    }
    assert not missing
