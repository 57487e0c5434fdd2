"""`trainer.translate` with a fake model, which translates to upper case without TensorFlow."""

import importlib.machinery
import sys
from unittest import mock

if __name__ == "__main__":
    fake_tensorflow = mock.MagicMock(__spec__=importlib.machinery.ModuleSpec("tensorflow", None))
    sys.modules["tensorflow"] = sys.modules["tensorflow_text"] = fake_tensorflow

from absl import app  # noqa: E402

from trainer import translate  # noqa: E402
from trainer.serving import model_versions  # noqa: E402
from trainer.serving.translator import Translation  # noqa: E402


class UpperCase:
    """A model that translates to upper case and truncates sentences above 60 bytes."""

    def __init__(self, path, **options):
        pass

    def n_best(self, sentences):
        return [[Translation(text.upper(), -1.0, len(text) > 60)] for text in sentences]


if __name__ == "__main__":
    model_versions.load = UpperCase
    translate.define_flags()
    app.run(translate.main)
