"""Lists the programs of this package.

python -m trainer
"""

import contextlib
import importlib
import sys

from . import streams
from .errors import PROGRAMS, as_started


def main(argv: list[str]):
    """Prints a line for each program: its name and the first line of its help."""
    if argv[1:] not in ([], ["--help"]):
        sys.exit(
            f"{__package__}: Expected no arguments. Received: {argv[1]!r}. "
            + as_started("Start a program with `python -m trainer.NAME`.")
        )
    lines = ["Start a program with `python -m trainer.NAME`. Its flags are listed by --help.", ""]
    for name in PROGRAMS:
        help_text = importlib.import_module(f"{__package__}.{name}").__doc__
        lines.append(f"  {name:20}{help_text.splitlines()[0]}")
    with contextlib.suppress(BrokenPipeError):
        print(as_started("\n".join(lines)))
    streams.flush_or_discard(sys.stdout)


if __name__ == "__main__":
    main(sys.argv)
