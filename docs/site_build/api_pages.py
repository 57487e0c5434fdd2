"""MkDocs hook: adds a page for every public name of t2t_relpos, and an index of all."""

import ast
import sys
from pathlib import Path

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))

from name_links import link_names  # noqa: E402
from public_names import SOURCES, SUBPACKAGES, api_pages, exported_names  # noqa: E402

INDEX = "api/index.md"


def on_config(config):
    """Replaces the navigation entry `api/` by the index and the pages."""
    sections = [
        {SUBPACKAGES[package]: [{path.rpartition(".")[2]: page} for path, page in entries]}
        for package, entries in api_pages().items()
    ]
    for entry in config.nav:
        if entry == {"API reference": "api/"}:
            entry["API reference"] = [INDEX, *sections]
    config.watch.append(str(SOURCES))
    return config


def on_files(files, config):
    """Adds the generated pages."""
    files.append(File.generated(config, INDEX, content=index_page()))
    for entries in api_pages().values():
        for path, page in entries:
            files.append(File.generated(config, page, content=name_page(path)))
    return files


def on_page_markdown(markdown, page, **kwargs):
    """Links public names in code font, in all pages that are not generated."""
    return markdown if page.file.generated_by else link_names(markdown)


def name_page(path: str) -> str:
    """Returns the page of a public name."""
    name = path.rpartition(".")[2]
    text = f"---\ntitle: {name}\n---\n\n::: {path}\n"
    if name in exported_names():
        text += f"\nAlso available as `t2t_relpos.{name}`.\n"
    return text


def index_page() -> str:
    """Returns a page with all public names and the first sentence of their docstrings."""
    lines = ["# API reference", ""]
    lines += ["Every public class and function has a page. `t2t_relpos` exports those with a *."]
    for package, entries in api_pages().items():
        lines += ["", f"## {SUBPACKAGES[package]}: `t2t_relpos.{package}`", ""]
        lines += ["| Name | Description |", "| --- | --- |"]
        for path, page in entries:
            name = path.rpartition(".")[2]
            star = "\\*" if name in exported_names() else ""
            link = f"[`{name}`]({page.removeprefix('api/')})"
            lines.append(f"| {link}{star} | {first_sentence(package, name)} |")
    return "\n".join(lines) + "\n"


def first_sentence(package: str, name: str) -> str:
    """Returns the first line of the docstring of a class or function, or of a module."""
    module = ast.parse((SOURCES / package / "__init__.py").read_text())
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            path = SOURCES.parent.joinpath(*node.module.split(".")).with_suffix(".py")
            return _docstring(ast.parse(path.read_text()), name).split("\n")[0]
    raise ValueError(f"t2t_relpos/{package}/__init__.py imports no {name}.")


def _docstring(module: ast.Module, name: str) -> str:
    for node in module.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node) or ""
    return ast.get_docstring(module) or ""
