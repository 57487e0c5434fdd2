"""Translates ten thousand random texts and prints the growth of the process's memory in bytes.

    python answer_random_bytes.py SAVED_MODEL

test_concurrency_and_memory.py runs it in a separate process, because memory that other tests left
to the allocator would count too.
"""

import ctypes
import gc
import math
import random
import sys
from pathlib import Path

import tensorflow as tf
import tensorflow_text  # noqa: F401, registers operations of the model

BATCHES = 500
# Parts of texts: words, blanks, control characters, several scripts, and invalid UTF-8.
PARTS = [b"the dog ", b"runs. ", b" ", b"\t", b"\n", b"\0", b"\x7f", b"\xff", b"\xed\xa0\x80"]
PARTS += [text.encode() for text in "äöüß собака 犬走る كلب כלב \u3000".split(" ")]
PARTS += [text.encode() for text in ("👩\u200d👧", "e\u0301\u0308", "\u202e\ufeff", "\x85")]


def resident_memory():
    """Returns the resident memory of this process in bytes, after releasing freed memory."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmRSS:") + 1]) * 1024


def memory_growth(serve):
    """Translates batches of random texts. Returns the growth in bytes after the first third."""
    chooser, memory = random.Random(1803), None
    for number in range(BATCHES):
        if number == BATCHES // 3:
            memory = resident_memory()
        texts = [
            b"".join(chooser.choices(PARTS, k=chooser.randrange(1, 40)))
            for _ in range(chooser.choice([1, 2, 7, 32, 61]))
        ]
        texts[0] *= chooser.choice([1, 1, 1, 100])
        answer = serve(text=tf.constant(texts, tf.string))
        for translation in answer["translations"].numpy().tolist():
            translation.decode("utf-8")
        assert all(map(math.isfinite, answer["scores"].numpy())), texts
    return resident_memory() - memory


if __name__ == "__main__":
    print(memory_growth(tf.saved_model.load(sys.argv[1]).signatures["serving_default"]))
