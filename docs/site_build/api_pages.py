"""MkDocs hook: adds a page for every public name of t2t_relpos, and an index of all."""

import ast
import sys
from pathlib import Path

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))

from name_links import link_names  # noqa: E402
from public_names import (  # noqa: E402
    SOURCES,
    SUBPACKAGES,
    api_pages,
    defining_module,
    exported_names,
    identifiers,
)

INDEX = "api/index.md"


def on_config(config):
    """Replaces the navigation entry `api/` by the index and the pages."""
    sections = [
        {SUBPACKAGES[package]: [{name: page} for name, page in names.items()]}
        for package, names in api_pages().items()
    ]
    for entry in config.nav:
        if entry == {"API reference": "api/"}:
            entry["API reference"] = [INDEX, *sections]
    config.watch.append(str(SOURCES))
    return config


def on_files(files, config):
    """Adds the generated pages."""
    files.append(File.generated(config, INDEX, content=index_page()))
    for names in api_pages().values():
        for name, page in names.items():
            files.append(File.generated(config, page, content=name_page(name)))
    return files


def on_page_markdown(markdown, page, **kwargs):
    """Links public names in code font, in all pages that are not generated."""
    return markdown if page.file.generated_by else link_names(markdown)


def name_page(name: str) -> str:
    """Returns the page of a public name."""
    return f"---\ntitle: {name}\n---\n\n::: {identifiers()[name]}\n"


def index_page() -> str:
    """Returns a page with all public names and the first lines of their docstrings."""
    lines = ["# API reference", ""]
    lines += ["Every public class and function has a page. `t2t_relpos` exports those with a *."]
    for package, names in api_pages().items():
        lines += ["", f"## {SUBPACKAGES[package]}: `t2t_relpos.{package}`", ""]
        lines += ["| Name | Description |", "| --- | --- |"]
        for name, page in names.items():
            star = "\\*" if name in exported_names() else ""
            link = f"[`{name}`]({page.removeprefix('api/')})"
            lines.append(f"| {link}{star} | {first_line(package, name)} |")
    return "\n".join(lines) + "\n"


def first_line(package: str, name: str) -> str:
    """Returns the first line of the docstring of a class, a function, or its module."""
    path = SOURCES.parent.joinpath(*defining_module(package, name).split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    module = ast.parse(path.read_text())
    documented = module
    for node in module.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            documented = node
    return (ast.get_docstring(documented) or "").split("\n")[0]
