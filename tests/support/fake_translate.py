"""`trainer.translate` with a fake model that does not need TensorFlow.

A batch takes FAKE_SECONDS. Translations are the sentences in upper case. The score of a sentence is
the negative number of characters in its batch, so that other batches give a different file.
Progress is recorded after every window. With FAKE_OPERATIONS=n, the process kills itself after n
file operations. An operation writes at most seven bytes.
"""

import atexit
import importlib.machinery
import io
import os
import signal
import sys
import time
from unittest import mock

if __name__ == "__main__":
    fake_tensorflow = mock.MagicMock(__spec__=importlib.machinery.ModuleSpec("tensorflow", None))
    sys.modules["tensorflow"] = sys.modules["tensorflow_text"] = fake_tensorflow

from absl import app  # noqa: E402

from trainer import translate  # noqa: E402
from trainer.inference import resumable_output  # noqa: E402
from trainer.serving import saved_models  # noqa: E402
from trainer.serving.translator import Alignment, Translation  # noqa: E402


class FakeTranslator:
    def __init__(self, path, nbest, **options):
        self.count = nbest or 1

    def n_best(self, sentences):
        time.sleep(float(os.environ.get("FAKE_SECONDS", 0)))
        score = -float(sum(map(len, sentences)))
        return [self.best(sentence, score) for sentence in sentences]

    def best(self, sentence, score):
        words = sentence.split()
        alignment = Alignment(words, words[::-1], list(range(len(words)))[::-1])
        texts = [sentence.upper() + b"!" * rank for rank in range(self.count)]
        return [
            Translation(text, score - rank, len(sentence) > 60, alignment)
            for rank, text in enumerate(texts)
        ]


class LimitedFileOperations:
    """Patches file operations, so that the process is killed after `operations` of them."""

    def __init__(self, operations):
        self.operations = self.left = operations
        self.fsync, self.replace = os.fsync, os.replace

    def count(self, operation, *arguments):
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return operation(*arguments)

    def install(self):
        counter = self

        class File(io.FileIO):
            def write(self, data):
                return sum(
                    counter.count(super(File, self).write, data[i : i + 7])
                    for i in range(0, len(data), 7)
                )

        resumable_output.open = lambda path, mode: File(path, mode.replace("b", ""))
        os.fsync = lambda *arguments: self.count(self.fsync, *arguments)
        os.replace = lambda *arguments: self.count(self.replace, *arguments)
        atexit.register(lambda: print("operations:", self.operations - self.left, file=sys.stderr))


if __name__ == "__main__":
    saved_models.load = FakeTranslator
    saved_models.fingerprint = lambda path: "fake"
    resumable_output.SECONDS_BETWEEN_ENTRIES = 0.0
    if "FAKE_OPERATIONS" in os.environ:
        LimitedFileOperations(int(os.environ["FAKE_OPERATIONS"])).install()
    translate.define_flags()
    app.run(translate.main)
