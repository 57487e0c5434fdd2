"""Lets tests import the examples, which are not installed."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[2]))
