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


def random_bytes(chooser):
    return chooser.randbytes(chooser.randrange(1, 60))


def blank(chooser):
    return b"".join(chooser.choices([b"", b" ", b"\t", b"\n", "\u3000".encode()], k=3))


def control_characters(chooser):
    return bytes(chooser.choices([*range(32), 127], k=chooser.randrange(1, 20))) + chooser.choice(
        [b"", b"dog", b"\xc2\x85"]
    )


def mixed_scripts(chooser):
    alphabets = [
        "the dog ",
        "äöüß",
        "собака",
        "犬走る",
        "كلب",
        "כלב",
        "🎉👩‍👩‍👧",
        "e\u0301\u0308",
        "\u202e\u200b\ufeff",
        "\U0010ffff",
    ]
    return "".join(
        chooser.choice(chooser.choice(alphabets)) for _ in range(chooser.randrange(1, 40))
    ).encode()


def very_long(chooser):
    word = chooser.choice([b"house ", b"x", b"\xff", "犬".encode(), b"\x00", b"the dog runs. "])
    return word * (chooser.randrange(1_000, 20_000) // len(word))


def corrupted_sentence(chooser):
    text = bytearray(b"On Sunday the woman arrives, and the dog runs.")
    for _ in range(chooser.randrange(1, 6)):
        text[chooser.randrange(len(text))] = chooser.randrange(256)
    return bytes(text[: chooser.randrange(1, len(text))])


SAMPLERS = [random_bytes, blank, control_characters, mixed_scripts, corrupted_sentence]


def random_texts(count):
    """Returns the same random texts in each call. One in fifty is very long."""
    chooser = random.Random(1803)
    return [(very_long if i % 50 == 0 else chooser.choice(SAMPLERS))(chooser) for i in range(count)]


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
