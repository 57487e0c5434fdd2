"""`trainer.translate` with a model that needs no TensorFlow, starts at once, and takes as long for
a batch as FAKE_SECONDS says, and FAKE_FIRST_SECONDS longer for the first call.

Its answers are the sentences in upper case; their scores report how many characters the batch held,
so that nobody who translates in other batches writes the same file. It notes its progress after
every window. With FAKE_OPERATIONS=n it kills itself before the n-th operation on its files. Each
writes at most seven bytes.
"""

import atexit
import io
import os
import signal
import sys
import time
from unittest import mock

if __name__ == "__main__":
    sys.modules["tensorflow"] = sys.modules["tensorflow_text"] = mock.MagicMock()

from absl import app  # noqa: E402

from trainer import translate  # noqa: E402
from trainer.inference import unfinished_files  # noqa: E402
from trainer.serving import saved_models  # noqa: E402
from trainer.serving.translator import Alignment, Translation  # noqa: E402


class FakeTranslator:
    def __init__(self, path, nbest, **options):
        self.count = nbest or 1
        self.is_prepared = False

    def n_best(self, sentences):
        if not self.is_prepared:
            time.sleep(float(os.environ.get("FAKE_FIRST_SECONDS", 0)))
            self.is_prepared = True
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


class DoomedFiles:
    """Files of a process that does not survive so many operations on them."""

    def __init__(self, operations):
        self.operations = self.left = operations
        self.fsync, self.replace = os.fsync, os.replace

    def survive(self, operation, *arguments):
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return operation(*arguments)

    def install(self):
        doom = self

        class File(io.FileIO):
            def write(self, data):
                return sum(
                    doom.survive(super(File, self).write, data[i : i + 7])
                    for i in range(0, len(data), 7)
                )

        unfinished_files.open = lambda path, mode: File(path, mode.replace("b", ""))
        os.fsync = lambda *arguments: self.survive(self.fsync, *arguments)
        os.replace = lambda *arguments: self.survive(self.replace, *arguments)
        atexit.register(lambda: print("operations:", self.operations - self.left, file=sys.stderr))


if __name__ == "__main__":
    saved_models.load = FakeTranslator
    saved_models.fingerprint = lambda path: "fake"
    unfinished_files.SECONDS_BETWEEN_NOTES = 0.0
    if "FAKE_OPERATIONS" in os.environ:
        DoomedFiles(int(os.environ["FAKE_OPERATIONS"])).install()
    translate.define_flags()
    app.run(translate.main)
