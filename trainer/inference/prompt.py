"""Lines that somebody types."""

import contextlib
import sys
from collections.abc import Iterator

PROMPT = "> "


def typed_lines() -> Iterator[bytes]:
    """Asks at the terminal of the standard input for one line after the other, until Ctrl-D.

    Lines can be edited and called back with the arrow keys where Python has readline. Where the
    standard output is no terminal, the prompt goes to the standard error, and what is written to
    the output are answers only.

    Yields:
        Each line, without its end, in the terminal's own bytes.
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (input() edits lines once it is imported)
    sys.stdin.reconfigure(errors="surrogateescape")
    seen = sys.stdout if sys.stdout.isatty() else sys.stderr
    while True:
        try:
            with contextlib.redirect_stdout(seen):
                line = input(PROMPT)
        except EOFError:
            print(file=seen)
            return
        yield line.encode(sys.stdin.encoding, "surrogateescape")
