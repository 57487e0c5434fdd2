"""Tests a loaded SavedModel with concurrent requests, and its memory with random texts."""

import concurrent.futures
import random
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from subprocesses import environment, run_python

from examples.synthetic_corpus import generate

REQUESTS = 1_000
THREADS = 16
# The measured growth is 0.1 MiB. A leak of 1.3 KiB for each text after the first third would exceed
# this limit.
MOST_GROWTH = 8 * 2**20


@pytest.mark.slow
def test_concurrent_requests_equal_single_sentences(loaded):
    texts = [source for source, _ in generate("test", size=37)]
    texts += ["", "house " * 100, "犬が走る 🎉"]

    def ask(rows):
        text = tf.constant([texts[i] for i in rows])
        answer = loaded.signatures["serving_default"](text=text)
        return {name: value.numpy() for name, value in answer.items()}

    single = [ask([i]) for i in range(len(texts))]
    chooser = random.Random(20180402)
    requests = [
        chooser.choices(range(len(texts)), k=chooser.choice([1, 1, 1, 2, 3, 5]))
        for _ in range(REQUESTS)
    ]
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(ask, requests))
    assert len(answers) == REQUESTS
    for rows, answer in zip(requests, answers):
        expected = {key: np.concatenate([single[i][key] for i in rows]) for key in answer}
        for name in ("translations", "truncated"):
            assert answer[name].tolist() == expected[name].tolist()
        np.testing.assert_allclose(answer["scores"], expected["scores"], atol=1e-4)


@pytest.mark.long
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="requires /proc/self/status, which Linux has"
)
def test_memory_does_not_grow_over_ten_thousand_random_texts(exported_dir):
    program = Path(__file__).with_name("answer_random_bytes.py")
    # Disable oneDNN: it caches primitives by shape, up to a limit above the number of these texts.
    variables = environment(TF_ENABLE_ONEDNN_OPTS="0")
    done = run_python(program, exported_dir / "1", env=variables)
    growth = int(done.stdout)
    assert growth < MOST_GROWTH, f"memory grew by {growth / 2**20:.1f} MiB"
