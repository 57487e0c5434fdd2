"""One loaded SavedModel under many requests at once, and under ten thousand rows of rubbish."""

import concurrent.futures
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from examples.synthetic_corpus import generate

pytestmark = pytest.mark.slow

REQUESTS = 1_000
THREADS = 16
# 0.1 MiB was measured. Had each of the 6,667 rows after the first third left 1.3 KiB after it
# would be more than this.
MOST_GROWTH = 8 * 2**20


def rows_of(answer):
    """The rows of an answer of serving_default: (text, score, truncated)."""
    return list(
        zip(
            *(answer[name].numpy().tolist() for name in ("translations", "scores", "truncated")),
            strict=True,
        )
    )


def test_a_thousand_requests_of_sixteen_threads_are_answered_as_if_alone(loaded):
    serve = loaded.signatures["serving_default"]
    texts = [
        *(source for source, _ in generate("test", size=37)),
        "",
        "house " * 100,
        "犬が走る 🎉",
    ]
    (only,) = zip(*(rows_of(serve(text=tf.constant([text]))) for text in texts))
    chooser = random.Random(20180402)
    requests = [
        chooser.choices(range(len(texts)), k=chooser.choice([1, 1, 1, 2, 3, 5]))
        for _ in range(REQUESTS)
    ]

    def ask(request):
        return rows_of(serve(text=tf.constant([texts[i] for i in request])))

    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(ask, requests))
    assert len(answers) == REQUESTS
    for request, answer in zip(requests, answers):
        expected = [only[i] for i in request]
        assert [(text, cut) for text, _, cut in answer] == [
            (text, cut) for text, _, cut in expected
        ]
        np.testing.assert_allclose(
            [score for _, score, _ in answer], [score for _, score, _ in expected], atol=1e-4
        )


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads memory from /proc, which Linux has"
)
def test_ten_thousand_rows_of_rubbish_are_answered_in_flat_memory(exported_dir):
    command = [
        sys.executable,
        str(Path(__file__).with_name("answer_rubbish.py")),
        str(exported_dir / "1"),
    ]
    # oneDNN caches primitives by shape, up to a limit above the number of these rows.
    done = subprocess.run(
        command, env=os.environ | {"TF_ENABLE_ONEDNN_OPTS": "0"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    growth = int(done.stdout)
    assert growth < MOST_GROWTH, f"grew by {growth / 2**20:.1f} MiB"
