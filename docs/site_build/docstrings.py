"""Griffe extension: converts Keras-style docstrings to the sections that mkdocstrings renders."""

import re
import sys
import textwrap
from pathlib import Path

import griffe

sys.path.insert(0, str(Path(__file__).parent))

from name_links import link_names  # noqa: E402
from public_names import import_statements  # noqa: E402

CALL_ARGUMENTS = re.compile(r"^Call arguments:$", re.MULTILINE)
# An example may have several paragraphs. The next section ends it.
EXAMPLE = re.compile(r"^Example:\n((?:.+\n?)+(?:\n(?![A-Z]\w*:)(?:.+\n?)+)*)", re.MULTILINE)
REFERENCE = re.compile(r"^Reference:", re.MULTILINE)
RETURNS = re.compile(r"^Returns:\n((?: .*\n?)+)", re.MULTILINE)


class KerasDocstrings(griffe.Extension):
    """Rewrites every docstring before Griffe parses it."""

    def on_object(self, *, obj, **kwargs):
        """Rewrites the docstring of an object."""
        if obj.docstring is not None and not getattr(obj.docstring, "is_converted", False):
            is_public = obj.name in import_statements() and obj.parent.is_module
            text = convert(obj.docstring.value, obj.name)
            obj.docstring.value = add_import(text, obj.name) if is_public else text
            obj.docstring.is_converted = True


def convert(text: str, name: str = "") -> str:
    """Returns a docstring with Google sections and links to the pages of public names.

    Args:
        text: the docstring, with `Example:` and `Call arguments:` as in Keras.
        name: name of the documented object, which is not linked.
    """
    text = EXAMPLE.sub(lambda match: "Examples:\n" + textwrap.indent(match[1], "    "), text)
    # Converted to text, because the "Returns" section of Google docstrings expects a type.
    text = RETURNS.sub(lambda match: "**Returns:**\n\n" + textwrap.dedent(match[1]), text)
    text = CALL_ARGUMENTS.sub("Other Parameters: Call arguments:", text)
    text = REFERENCE.sub("**Reference:**", text)
    return link_names(text, name)


def add_import(text: str, name: str) -> str:
    """Returns a docstring with the import statement after its first paragraph."""
    first, _, rest = text.partition("\n\n")
    return f"{first}\n\n```python\n{import_statements()[name]}\n```\n\n{rest}"
