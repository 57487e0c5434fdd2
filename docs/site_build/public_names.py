"""The public names of t2t_relpos, read from the sources without importing the package."""

import ast
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "t2t_relpos"

# Subpackages and modules in the order of the API reference, with the title of their section.
SUBPACKAGES = {
    "layers": "Layers",
    "models": "Models",
    "attention": "Attention functions",
    "decoding": "Decoding",
    "t2t": "tensor2tensor",
    "integrations.torch": "PyTorch",
    "integrations.transformers": "Models of transformers",
}


def exported_names(package: str = "") -> list[str]:
    """Returns `__all__` of `t2t_relpos` or of one of its subpackages."""
    for node in _init(package).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise ValueError(f"No __all__ in t2t_relpos.{package}.")


def defining_module(package: str, name: str) -> str:
    """Returns the dotted name of the module that defines a public name of a subpackage."""
    for node in _init(package).body:
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return node.module
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return f"t2t_relpos.{package}"
    raise ValueError(f"t2t_relpos.{package} neither imports nor defines {name}.")


def api_pages() -> dict[str, dict[str, str]]:
    """Returns the page of every documented name, by subpackage and name."""
    return {
        package: {
            name: f"api/{package.replace('.', '/')}/{name}.md" for name in exported_names(package)
        }
        for package in SUBPACKAGES
    }


def identifiers() -> dict[str, str]:
    """Returns the dotted path of every documented name.

    The path names the defining module, because some names are also names of modules.
    """
    return {
        name: f"{defining_module(package, name)}.{name}"
        for package, names in api_pages().items()
        for name in names
    }


def import_statements() -> dict[str, str]:
    """Returns the import statement of every documented name."""
    return {
        name: f"from t2t_relpos{'' if name in exported_names() else '.' + package} import {name}"
        for package, names in api_pages().items()
        for name in names
    }


def _init(package: str) -> ast.Module:
    path = SOURCES.joinpath(*package.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text())
