"""Writes the outputs of a saved model for saved inputs, on the backend of KERAS_BACKEND.

tests/test_backends.py runs this program:

    python outputs.py MODEL.keras INPUTS.npz OUTPUTS.npz
"""

import sys

import keras
import numpy as np

import t2t_relpos  # noqa: F401  registers the layers
from t2t_relpos.decoding import beam_search


def outputs_of(model_path, inputs):
    """Returns a model's outputs by name. Those of a Transformer include beam search results."""
    model = keras.models.load_model(model_path)
    outputs = {f"output {i}": x for i, x in enumerate(keras.tree.flatten(model(inputs)))}
    if isinstance(model, t2t_relpos.Transformer):
        rows, length = inputs["inputs"].shape
        state = model.encode(inputs["inputs"], length)
        found = beam_search(model.step, state, rows, length, beam_size=3, num_results=3)
        outputs |= found._asdict()
    return {name: keras.ops.convert_to_numpy(x) for name, x in outputs.items()}


if __name__ == "__main__":
    model_path, inputs_path, outputs_path = sys.argv[1:]
    with np.load(inputs_path) as arrays:
        np.savez(outputs_path, **outputs_of(model_path, dict(arrays)))
