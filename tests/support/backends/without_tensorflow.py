"""Imports all public names and trains and saves a model, without TensorFlow.

tests/test_backends.py runs this program:

    python without_tensorflow.py MODEL.keras
"""

import importlib
import importlib.machinery
import sys


class NoTensorFlow(importlib.machinery.PathFinder):
    """A path finder that hides the TensorFlow packages."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "tensorflow_text", "tensorflow_datasets"):
            return None
        return super().find_spec(name, path, target)


def main(path):
    sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = NoTensorFlow
    import keras
    import numpy as np

    for package in ("", ".attention", ".layers", ".models", ".decoding", ".t2t"):
        module = importlib.import_module(f"t2t_relpos{package}")
        for name in module.__all__:
            getattr(module, name)

    from t2t_relpos import TransformerEncoder

    x = np.random.default_rng(1).normal(size=(4, 7, 6)).astype("float32")
    inputs = keras.Input((7, 6))
    model = keras.Model(inputs, TransformerEncoder(11, 2, max_relative_position=3)(inputs))
    model.compile("adam", "mse")
    first, last = (model.fit(x, 0 * x, epochs=n, verbose=0).history["loss"][-1] for n in (1, 20))
    assert last < first
    model.save(path)
    loaded = keras.saving.load_model(path)
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(loaded.predict(x, verbose=0), expected, atol=1e-6)
    assert "tensorflow" not in sys.modules


if __name__ == "__main__":
    main(sys.argv[1])
