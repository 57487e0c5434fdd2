"""Links public names in code font to their pages in the API reference."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from public_names import identifiers  # noqa: E402

# Names that are also names of arguments, methods or flags of other programs.
AMBIGUOUS = {"attend", "explain", "key_positions", "length_penalty", "relative_ids"}
CODE = re.compile(r"(?<!\[)`(\w+)`")
FENCE = "```"


def link_names(text: str, name: str = "") -> str:
    """Returns Markdown with links, except in code, examples and headings.

    Args:
        text: the Markdown.
        name: a name that is not linked: that of the documented object.
    """
    paths = {key: path for key, path in identifiers().items() if key not in AMBIGUOUS | {name}}
    lines, in_code = [], False
    for line in text.split("\n"):
        if line.lstrip().startswith(FENCE):
            in_code = not in_code
        skipped = in_code or line.lstrip().startswith((">>>", "...", "#", "|"))
        lines.append(line if skipped else CODE.sub(lambda match: _link(match, paths), line))
    return "\n".join(lines)


def _link(match: re.Match, paths: dict[str, str]) -> str:
    path = paths.get(match[1])
    return f"[{match[0]}][{path}]" if path else match[0]
