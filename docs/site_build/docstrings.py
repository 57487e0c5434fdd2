"""Griffe extension: converts Keras-style docstrings to the sections that mkdocstrings renders."""

import re
import sys
from pathlib import Path

import griffe

sys.path.insert(0, str(Path(__file__).parent))

from public_names import identifiers  # noqa: E402

EXAMPLE = re.compile(r"^Example:\n((?:.+\n?)+)", re.MULTILINE)
CALL_ARGUMENTS = re.compile(r"^Call arguments:$", re.MULTILINE)
REFERENCE = re.compile(r"^Reference:", re.MULTILINE)
CODE = re.compile(r"(?<!\[)`(\w+)`")


class KerasDocstrings(griffe.Extension):
    """Rewrites every docstring before Griffe parses it."""

    def on_object(self, *, obj, **kwargs):
        """Rewrites the docstring of an object."""
        if obj.docstring is not None and not getattr(obj.docstring, "is_converted", False):
            obj.docstring.value = convert(obj.docstring.value, obj.name)
            obj.docstring.is_converted = True


def convert(text: str, name: str = "") -> str:
    """Returns a docstring with Google sections and links to the pages of public names.

    Args:
        text: the docstring, with `Example:` and `Call arguments:` as in Keras.
        name: name of the documented object, which is not linked.
    """
    text = EXAMPLE.sub(lambda match: "Examples:\n" + _indent(match[1]), text)
    text = CALL_ARGUMENTS.sub("Other Parameters: Call arguments", text)
    text = REFERENCE.sub("**Reference:**", text)
    return _link(text, {key: path for key, path in identifiers().items() if key != name})


def _indent(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def _link(text: str, paths: dict[str, str]) -> str:
    """Links public names in code font, except in examples."""
    lines = [
        line if line.lstrip().startswith((">>>", "...")) else CODE.sub(_linker(paths), line)
        for line in text.split("\n")
    ]
    return "\n".join(lines)


def _linker(paths: dict[str, str]):
    def linked(match):
        # Lower-case names are also names of arguments.
        name = match[1]
        is_class = name in paths and name[0].isupper()
        return f"[`{name}`][{paths[name]}]" if is_class else match[0]

    return linked
