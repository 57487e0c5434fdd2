"""One loaded SavedModel under many requests at once, and under ten thousand rows of rubbish."""

import concurrent.futures
import gc
import random
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from trainer.data.synthetic import generate

pytestmark = pytest.mark.slow

REQUESTS = 1_000
THREADS = 16
ROWS = 10_000
# 4.9 MiB were measured, of an allocator that settles. Had each of the 6,667 rows left 5 KiB behind it would be more than this, and the
# caches of one sentence are larger.
MOST_GROWTH = 32 * 2**20


def rows_of(answer):
    """The rows of an answer of serving_default: (text, score, truncated)."""
    return list(zip(*(answer[name].numpy().tolist() for name in ("translations", "scores", "truncated")), strict=True))


def test_a_thousand_requests_of_sixteen_threads_are_answered_as_if_alone(loaded):
    serve = loaded.signatures["serving_default"]
    texts = [*(source for source, _ in generate("test", size=37)), "", "house " * 100, "犬が走る 🎉"]
    (alone,) = zip(*(rows_of(serve(text=tf.constant([text]))) for text in texts))
    chooser = random.Random(20180402)
    requests = [chooser.choices(range(len(texts)), k=chooser.choice([1, 1, 1, 2, 3, 5])) for _ in range(REQUESTS)]

    def ask(request):
        return rows_of(serve(text=tf.constant([texts[i] for i in request])))

    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(ask, requests))
    assert len(answers) == REQUESTS
    for request, answer in zip(requests, answers):
        expected = [alone[i] for i in request]
        assert [(text, cut) for text, _, cut in answer] == [(text, cut) for text, _, cut in expected]
        np.testing.assert_allclose([score for _, score, _ in answer], [score for _, score, _ in expected], atol=1e-4)


def random_bytes(chooser):
    return chooser.randbytes(chooser.randrange(1, 60))


def blank(chooser):
    return b"".join(chooser.choices([b"", b" ", b"\t", b"\n", "\u3000".encode()], k=3))


def control_characters(chooser):
    return bytes(chooser.choices([*range(32), 127], k=chooser.randrange(1, 20))) + chooser.choice([b"", b"dog", b"\xc2\x85"])


def mixed_scripts(chooser):
    alphabets = ["the dog ", "äöüß", "собака", "犬走る", "كلب", "כלב", "🎉👩‍👩‍👧", "e\u0301\u0308", "\u202e\u200b\ufeff", "\U0010ffff"]
    return "".join(chooser.choice(chooser.choice(alphabets)) for _ in range(chooser.randrange(1, 40))).encode()


def very_long(chooser):
    word = chooser.choice([b"house ", b"x", b"\xff", "犬".encode(), b"\x00", b"the dog runs. "])
    return word * (chooser.randrange(1_000, 20_000) // len(word))


def damaged(chooser):
    text = bytearray(b"On Sunday the woman arrives, and the dog runs.")
    for _ in range(chooser.randrange(1, 6)):
        text[chooser.randrange(len(text))] = chooser.randrange(256)
    return bytes(text[: chooser.randrange(1, len(text))])


KINDS = [random_bytes, blank, control_characters, mixed_scripts, damaged]


def fuzzed(count):
    """The same rows whenever it is called; one in fifty is very long."""
    chooser = random.Random(1803)
    return [(very_long if i % 50 == 0 else chooser.choice(KINDS))(chooser) for i in range(count)]


def resident():
    """Bytes of memory that this process holds now."""
    gc.collect()
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmRSS:") + 1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc, which Linux has")
def test_ten_thousand_rows_of_rubbish_are_answered_in_flat_memory(loaded):
    serve = loaded.signatures["serving_default"]
    chooser = random.Random(6)
    rows, at, memory = fuzzed(ROWS), 0, None
    while at < ROWS:
        batch = rows[at : at + chooser.choice([1, 2, 7, 32, 61])]
        answer = rows_of(serve(text=tf.constant(batch, tf.string)))
        assert len(answer) == len(batch)
        for row, (text, score, truncated) in zip(batch, answer):
            text.decode("utf-8")
            assert np.isfinite(score) and isinstance(truncated, bool), row
        at += len(batch)
        if memory is None and at >= ROWS // 3:
            memory = resident()
    growth = resident() - memory
    assert growth < MOST_GROWTH, f"grew by {growth / 2**20:.1f} MiB"
