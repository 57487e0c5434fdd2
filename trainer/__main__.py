"""Lists the programs of this package.

python -m trainer
"""

import importlib
import sys

from .errors import PROGRAMS, as_installed, errors_as_exit_codes


def main(argv: list[str]):
    """Prints a line for each program: its name and the first line of its help."""
    if argv[1:] not in ([], ["--help"]):
        sys.exit(
            f"{__package__}: Expected no arguments. Received: {argv[1]!r}. "
            + as_installed("Start a program with `python -m trainer.NAME`.")
        )
    lines = ["Start a program with `python -m trainer.NAME`. Its flags are listed by --help.", ""]
    for name in PROGRAMS:
        help_text = importlib.import_module(f"{__package__}.{name}").__doc__
        lines.append(f"  {name:20}{help_text.splitlines()[0]}")
    with errors_as_exit_codes(__package__):
        print(as_installed("\n".join(lines)))


if __name__ == "__main__":
    main(sys.argv)
