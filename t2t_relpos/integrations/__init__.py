"""Attention of this library in PyTorch and in models of other libraries.

If neither Keras is imported nor KERAS_BACKEND is set, the backend of Keras is PyTorch.
"""

import importlib.util
import os
import sys

if "keras" not in sys.modules and importlib.util.find_spec("torch"):
    os.environ.setdefault("KERAS_BACKEND", "torch")
