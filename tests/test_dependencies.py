"""Tests the import rules of docs/dev/architecture.md, and that setup.cfg has all requirements."""

import ast
import configparser
import functools
import re
import sys
from pathlib import Path

import pytest

from trainer import errors

# The nodes of syntax trees are many objects for the garbage collector.
pytestmark = pytest.mark.usefixtures("frozen_objects")
ROOT = Path(__file__).parent.parent
FRAMEWORKS = {"tensorflow", "tensorflow_text", "tensorflow_datasets", "jax", "torch", "triton"}
STANDARD_LIBRARY = {
    *"abc argparse ast collections contextlib contextvars copy dataclasses difflib".split(),
    *"functools hashlib importlib inspect io itertools json logging math numbers".split(),
    *"operator os sys".split(),
    *"pathlib re string struct tempfile time types typing unicodedata warnings zlib".split(),
}
# Private Keras attributes. `backend.keras_private` checks that they exist.
PRIVATE_KERAS = {
    *"_keras_mask _flatten_layers _kernel currentframe".split(),
    *"_query_dense _key_dense _value_dense _gate_dense _output_dense".split(),
}
# Folder of the library -> folders of the library that it may import.
MAY_IMPORT = {
    "backend": {"backend"},
    "attention": {"attention"},
    "layers": {"attention", "layers"},
    "models": {"attention", "decoding", "layers", "models"},
    "decoding": {"decoding"},
    "integrations": {"attention", "integrations", "layers"},
    "t2t": {"layers", "models", "t2t"},
}
# Modules that all folders of the library may import.
SHARED = {"_checks", "_conventions", "_suggestions", "backend", "hparams_sets"}


def modules(package):
    return sorted((ROOT / package).rglob("*.py"))


@functools.cache
def nodes(path):
    """Returns all nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text())))


def absolute_name(path, node):
    """Returns the module that `from MODULE import ...` names in a file of the repository."""
    assert node.level == 0 or path.is_relative_to(ROOT / "trainer"), f"{path}: relative import"
    parents = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
    return ".".join([*parents, *filter(None, [node.module])])


@functools.cache
def imports(path):
    """Returns the dotted names of all imports of a file, including nested ones."""
    names = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute_name(path, node)
            names.add(module)
            names.update(f"{module}.{alias.name}" for alias in node.names)
    return names


def imported_packages(path):
    return {name.split(".")[0] for name in imports(path)}


def violations(package, find):
    """Returns what `find(path)` returns for the modules of a package, without empty results."""
    found = {path.relative_to(ROOT): find(path) for path in modules(package)}
    return {str(path): names for path, names in found.items() if names}


def test_library_imports_no_framework_and_no_trainer():
    def find(path):
        allowed = STANDARD_LIBRARY | {"keras", "numpy", "t2t_relpos"}
        of_integrations = "integrations" in path.parts
        of_frameworks = path.parent.name == "backend" or of_integrations
        if "tensorflow" in (path.stem, path.parent.name) or of_frameworks:
            allowed |= FRAMEWORKS
        if of_integrations:
            allowed |= {"transformers"}
        return imported_packages(path) - allowed

    assert violations("t2t_relpos", find) == {}


def test_library_folders_import_only_allowed_folders():
    def find(path):
        parts = path.relative_to(ROOT / "t2t_relpos").parts
        names = [name.split(".") for name in imports(path)]
        used = {name[1] for name in names if name[0] == "t2t_relpos" and len(name) > 1}
        shared = set() if parts[0] == "backend" else SHARED
        return used - MAY_IMPORT[parts[0]] - shared if len(parts) > 1 else set()

    assert violations("t2t_relpos", find) == {}


def test_only_the_backend_uses_private_apis():
    def find(path):
        if path.parent.name == "backend":
            return set()
        names = {node.attr for node in nodes(path) if isinstance(node, ast.Attribute)}
        # `getattr(tensor, "_keras_mask")`
        names |= {node.value for node in nodes(path) if isinstance(node, ast.Constant)}
        private = ("keras.src", "tensorflow.python", "jax._src")
        return names & PRIVATE_KERAS | {n for n in imports(path) if n.startswith(private)}

    assert violations("t2t_relpos", find) == {}


def test_trainer_modules_import_no_entry_point():
    names = "average evaluate export export_ctranslate2 import_t2t train translate visualize"
    programs = {f"trainer.{name}" for name in names.split()}
    assert violations("trainer", lambda path: imports(path) & programs) == {}


def test_trainer_registers_no_class():
    # Its modules have two names, `trainer` in a checkout and `t2t_relpos.trainer`, so that a saved
    # file can't name a class of theirs.
    def find(path):
        return "register_keras_serializable" in path.read_text()

    assert violations("trainer", find) == {}


def test_translate_does_not_import_keras_or_the_library():
    seen, waiting = set(), [ROOT / "trainer/__init__.py", ROOT / "trainer/translate.py"]
    while waiting:
        path = waiting.pop()
        if path in seen or not path.exists():
            continue
        seen.add(path)
        used = imported_packages(path)
        assert not used & {"keras", "t2t_relpos", "sacrebleu", "sentencepiece"}, path
        for name in imports(path):
            if name.startswith("trainer."):
                waiting.append(ROOT / (name.replace(".", "/") + ".py"))
                waiting.append(ROOT / name.replace(".", "/") / "__init__.py")


@functools.cache
def setup():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def requirements(text):
    """Returns the packages of a list of requirements, and of the extras that it names."""
    packages = {
        name.replace("-", "_") for name in re.findall(r"^([\w.-]+)[><=]", text, re.MULTILINE)
    }
    for extras in re.findall(r"^t2t_relpos\[(.*)\]$", text, re.MULTILINE):
        for extra in extras.split(","):
            packages |= requirements(setup()["options.extras_require"][extra])
    return packages


def test_setup_lists_all_packages():
    folders = {file.parent.relative_to(ROOT) for file in modules("t2t_relpos")}
    folders |= {"t2t_relpos" / file.parent.relative_to(ROOT) for file in modules("trainer")}
    listed = setup()["options"]["packages"].split()
    assert listed == sorted(".".join(folder.parts) for folder in folders)
    assert all((file.parent / "__init__.py").exists() for file in modules("t2t_relpos"))
    assert all((file.parent / "__init__.py").exists() for file in modules("trainer"))


def test_library_requires_keras_and_numpy_only():
    assert requirements(setup()["options"]["install_requires"]) == {"keras", "numpy"}


def test_errors_name_the_extra_of_each_package():
    of_extra = setup()["options.extras_require"]
    expected = {
        name.removesuffix("_py"): extra
        for extra in ("trainer", "ctranslate2", "visualize")
        for name in requirements(of_extra[extra])
    }
    assert errors.EXTRAS == expected


def test_trainer_imports_packages_of_its_extras_only():
    def find(path):
        allowed = {*errors.EXTRAS, "keras", "numpy", "t2t_relpos", "trainer", "google"}
        return imported_packages(path) - sys.stdlib_module_names - allowed

    assert violations("trainer", find) == {}


def test_setup_requires_all_packages_that_tests_import():
    packages = requirements(setup()["options"]["install_requires"])
    packages |= requirements(setup()["options.extras_require"]["test"])
    # Packages with other names than their modules. TensorFlow chooses the version of protobuf: its
    # generated code works with few of them.
    packages |= {"absl", "google"}
    local = {path.stem for path in (ROOT / "tests").rglob("*")}
    local |= {"t2t_relpos", "trainer", "benchmarks", "examples", "tests"}
    # `make test-backends`, `test-fused` and `test-serving` install these, and not the extra `test`.
    local |= {"jax", "torch", "triton", "transformers", "peft", "accelerate", "tensorflow_serving"}

    def find(path):
        return imported_packages(path) - sys.stdlib_module_names - local - packages

    assert violations("tests", find) == {}
