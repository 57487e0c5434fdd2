"""Adds the repository root to the import path, since the examples are not installed."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[2]))
