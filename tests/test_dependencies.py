"""Tests the import rules of docs/dev/architecture.md on the source files."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FRAMEWORKS = {"tensorflow", "tensorflow_text", "tensorflow_datasets", "jax", "torch"}
STANDARD_LIBRARY = {
    *"abc argparse ast collections contextlib contextvars copy dataclasses difflib".split(),
    *"functools hashlib".split(),
    *"inspect io itertools json logging math numbers operator os pathlib re string struct".split(),
    *"tempfile time typing unicodedata warnings zlib".split(),
}
ENTRY_POINTS = (
    "train",
    "average",
    "evaluate",
    "export",
    "export_ctranslate2",
    "translate",
    "import_t2t",
    "visualize",
)
# Private Keras attributes. `_keras_compat` checks that they exist.
PRIVATE_KERAS = {
    *"_keras_mask _flatten_layers _kernel currentframe".split(),
    *"_query_dense _key_dense _value_dense _gate_dense _output_dense".split(),
}
# Folder of the library -> folders of the library that it may import.
MAY_IMPORT = {
    "attention": {"attention"},
    "layers": {"attention", "layers"},
    "models": {"attention", "decoding", "layers", "models"},
    "decoding": {"decoding"},
    "t2t": {"models", "t2t"},
}


def modules(package):
    return sorted((ROOT / package).rglob("*.py"))


def imports(path):
    """Returns the dotted names of all imports of a file, including nested ones."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def imported_packages(path):
    return {name.split(".")[0] for name in imports(path)}


@pytest.mark.parametrize("path", modules("t2t_relpos"), ids=str)
def test_library_imports_no_framework_and_no_trainer(path):
    allowed = STANDARD_LIBRARY | {"keras", "numpy", "t2t_relpos"}
    for_a_backend = path.stem.startswith(("_backend", "_tensorflow", "_jax", "_torch"))
    if for_a_backend or path.parent.name == "tensorflow":
        allowed |= FRAMEWORKS
    assert imported_packages(path) <= allowed


@pytest.mark.parametrize("path", modules("t2t_relpos"), ids=str)
def test_library_folders_import_only_allowed_folders(path):
    parts = path.relative_to(ROOT / "t2t_relpos").parts
    if len(parts) == 1:
        return
    names = [name.split(".") for name in imports(path)]
    used = {name[1] for name in names if name[0] == "t2t_relpos" and len(name) > 1}
    shared = {"_backend", "_checks", "_keras_compat", "_portable"}
    shared |= {"_jax_compile", "_tensorflow_compile", "_torch_compile"}
    assert used <= MAY_IMPORT[parts[0]] | shared


@pytest.mark.parametrize("path", modules("t2t_relpos"), ids=str)
def test_only_keras_compat_uses_private_keras_attributes(path):
    if path.name == "_keras_compat.py":
        return
    assert not [name for name in imports(path) if name.startswith("keras.src")]
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    # `getattr(tensor, "_keras_mask")`
    names |= {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert not names & PRIVATE_KERAS


@pytest.mark.parametrize("path", modules("trainer"), ids=str)
def test_trainer_modules_import_no_entry_point(path):
    assert not imports(path) & {f"trainer.{name}" for name in ENTRY_POINTS}


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
