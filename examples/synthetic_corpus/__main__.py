"""Writes the splits of the synthetic English-German corpus as text files, one sentence per line.

    python -m examples.synthetic_corpus runs/synthetic_corpus

The files are train, dev, test and test_longer, each with the suffixes .en and .de. Existing files
of these names are replaced.
"""

import sys
from pathlib import Path

from absl import app

from examples.synthetic_corpus import SPLITS, generate
from trainer import atomic_files, errors


def write_split(folder, split, size=None):
    """Writes `SPLIT.en` and `SPLIT.de` into a folder, each atomically."""
    for language, lines in zip(("en", "de"), zip(*generate(split, size))):
        atomic_files.write_text(Path(folder) / f"{split}.{language}", "\n".join(lines) + "\n")


@errors.errors_as_exit_codes("synthetic_corpus")
def main(argv):
    """Runs the program; `argv[1]` is the folder."""
    if len(argv) != 2:
        sys.exit(f"Expected one argument, a folder for the files. Received: {len(argv) - 1}.")
    folder = Path(argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        write_split(folder, split)
    for split, size in SPLITS.items():
        print(f"{folder / split}.en, .de: {size} sentence pairs")


if __name__ == "__main__":
    app.run(main)
