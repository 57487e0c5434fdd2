"""The public names of t2t_relpos, read from the sources without importing the package."""

import ast
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "t2t_relpos"

# Subpackages in the order of the API reference, with the title of their section.
SUBPACKAGES = {
    "layers": "Layers",
    "models": "Models",
    "attention": "Attention functions",
    "decoding": "Decoding",
    "t2t": "tensor2tensor",
}


def exported_names(package: str = "") -> list[str]:
    """Returns `__all__` of `t2t_relpos` or of one of its subpackages."""
    tree = ast.parse((SOURCES / package / "__init__.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise ValueError(f"No __all__ in t2t_relpos/{package}/__init__.py.")


def api_pages() -> dict[str, list[tuple[str, str]]]:
    """Returns (public path, page) of every documented name, by subpackage."""
    return {
        package: [
            (f"t2t_relpos.{package}.{name}", f"api/{package}/{name}.md")
            for name in exported_names(package)
        ]
        for package in SUBPACKAGES
    }


def identifiers() -> dict[str, str]:
    """Returns the public path of every documented name, by its last component."""
    return {
        path.rpartition(".")[2]: path for entries in api_pages().values() for path, _ in entries
    }
