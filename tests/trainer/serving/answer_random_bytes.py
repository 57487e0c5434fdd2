"""Translates ten thousand random texts and prints the growth of the process's memory in bytes.

    python answer_random_bytes.py SAVED_MODEL

It also checks the types of all results. test_concurrency_and_memory.py runs it in a separate
process, because memory that other tests left to the allocator would count too.
"""

import ctypes
import gc
import math
import random
import sys
from pathlib import Path

import tensorflow as tf
import tensorflow_text  # noqa: F401, registers operations of the model

TEXTS = 10_000
# Parts of texts: words, blanks, control characters, several scripts, and invalid UTF-8.
PARTS = [b"the dog ", b"runs. ", b" ", b"\t", b"\n", b"\0", b"\x7f", b"\xff", b"\xed\xa0\x80"]
PARTS += [text.encode() for text in "äöüß собака 犬走る كلب כלב \u3000 \U0010ffff".split(" ")]
PARTS += [text.encode() for text in ("👩‍👩‍👧", "e\u0301\u0308", "\u202e\u200b\ufeff", "\x85")]


def random_texts(count):
    """Returns the same random texts in each call. One in fifty is very long."""
    chooser = random.Random(1803)
    texts = []
    for i in range(count):
        text = bytearray(b"".join(chooser.choices(PARTS, k=chooser.randrange(1, 40))))
        for _ in range(chooser.choice([0, 0, 1, 5])):
            text[chooser.randrange(len(text))] = chooser.randrange(256)
        texts.append(bytes(text) * (chooser.randrange(10, 200) if i % 50 == 0 else 1))
    return texts


def resident_memory():
    """Returns the resident memory of this process in bytes, after releasing freed memory."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmRSS:") + 1]) * 1024


def memory_growth(serve):
    """Translates all texts in batches. Returns the memory growth in bytes after the first third."""
    chooser = random.Random(6)
    texts, at, memory = random_texts(TEXTS), 0, None
    while at < TEXTS:
        batch = texts[at : at + chooser.choice([1, 2, 7, 32, 61])]
        answer = serve(text=tf.constant(batch, tf.string))
        names = "translations", "scores", "truncated"
        results = (answer[name].numpy().tolist() for name in names)
        for text, translation, score, truncated in zip(batch, *results, strict=True):
            translation.decode("utf-8")
            assert math.isfinite(score) and isinstance(truncated, bool), text
        at += len(batch)
        if memory is None and at >= TEXTS // 3:
            memory = resident_memory()
    return resident_memory() - memory


if __name__ == "__main__":
    print(memory_growth(tf.saved_model.load(sys.argv[1]).signatures["serving_default"]))
