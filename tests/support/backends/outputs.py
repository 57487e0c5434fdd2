"""Writes the outputs of saved models for saved inputs, on the backend of KERAS_BACKEND.

tests/test_backends.py runs this program:

    python outputs.py FOLDER NAME...

It reads NAME.keras and NAME_inputs.npz and writes NAME_outputs.npz.
"""

import pathlib
import sys

import keras
import numpy as np

import t2t_relpos  # noqa: F401  registers the layers
from t2t_relpos.decoding import beam_search


def outputs_of(model_path, inputs):
    """Returns a model's outputs by name. Those of a Transformer include beam search results."""
    model = keras.models.load_model(model_path)
    outputs = model.predict(inputs, verbose=0)  # On JAX, separate operations take longer.
    if isinstance(model, t2t_relpos.Transformer):
        rows, length = inputs["inputs"].shape
        state = model.encode(inputs["inputs"], length)
        found = beam_search(model.step, state, rows, length, beam_size=3, num_results=3)
        outputs = {"logits": outputs} | found._asdict()
    return {name: keras.ops.convert_to_numpy(x) for name, x in outputs.items()}


if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    for name in names:
        path = pathlib.Path(folder, name)
        with np.load(f"{path}_inputs.npz") as arrays:
            np.savez(f"{path}_outputs.npz", **outputs_of(f"{path}.keras", dict(arrays)))
