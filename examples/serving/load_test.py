"""Translates sentences with a SavedModel from several threads, and prints times and memory.

    python -m examples.serving.load_test --saved_model=saved_models/mine/1 --text=data/test.en
    python -m examples.serving.load_test --saved_model=saved_models/mine/1 --text=data/test.en \
      --batching_config=examples/serving/batching.config

Each thread sends the next request when it has the answer to the last one. The model runs in this
process, in TensorFlow's runtime. With --batching_config, requests share batches: TensorFlow's
operation BatchFunction uses the scheduler of TensorFlow Serving. There is no network, and no JSON.
"""

import concurrent.futures
import itertools
import os
import re
import resource
import threading
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401, registers the operations of the tokenizer
from absl import app, flags


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`."""
    options = {"flag_values": values}
    flags.DEFINE_string("saved_model", None, "saved_models/NAME/VERSION.", **options)
    flags.DEFINE_string("text", None, "File with one sentence per line.", **options)
    flags.DEFINE_float("seconds", 60, "Duration.", lower_bound=0.1, **options)
    flags.DEFINE_integer("threads", 8, "Number of threads.", lower_bound=1, **options)
    flags.DEFINE_integer("sentences", 1, "Sentences in a request.", lower_bound=1, **options)
    help_text = "Threads of an operation: --tensorflow_intra_op_parallelism of TensorFlow Serving."
    flags.DEFINE_integer("intra_op_threads", 1, help_text, lower_bound=0, **options)
    help_text = "File with BatchingParameters. Default: each request is a batch."
    flags.DEFINE_string("batching_config", None, help_text, **options)
    for name in ("saved_model", "text"):
        flags.mark_flag_as_required(name, flag_values=values)


def resident_megabytes(*, peak: bool = False) -> float:
    """Returns the memory of this process, or its maximum until now, in 10^6 bytes."""
    if peak:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def batched(call, config: str):
    """Returns `call`, a function of sentences, behind the scheduler of TensorFlow Serving.

    Args:
        call: a signature of an exported model.
        config: a text of BatchingParameters, such as batching.config.
    """
    values = dict(re.findall(r"^(\w+) *\{ *value: *(\w+) *\}", config, re.MULTILINE))
    splits = values.get("enable_large_batch_splitting") == "true"
    largest = int(values["max_batch_size"])
    execution = int(values.get("max_execution_batch_size", largest)) if splits else largest
    options = {"max_batch_size": largest, "enable_large_batch_splitting": splits}
    # BatchFunction takes the size of executed batches from here, and pads other sizes.
    options["allowed_batch_sizes"] = [*range(1, execution + 1)] if splits else None
    for name in ("batch_timeout_micros", "max_enqueued_batches", "num_batch_threads"):
        options[name] = int(values[name])
    names = sorted(call.structured_outputs)

    @tf.nondifferentiable_batch_function(**options, autograph=False)
    def scheduled(text):
        answer = call(text=text)
        return [answer[name] for name in names]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def translate(text):
        return dict(zip(names, scheduled(text)))

    return translate


def load_test(call, requests: list[list[str]], *, seconds: float, threads: int) -> dict:
    """Calls a function from several threads, and returns what was measured.

    Args:
        call: a function of a string tensor `[B]`.
        requests: the sentences of each request. They are repeated.
        seconds: requests start until then.
        threads: number of requests at a time.

    Returns:
        A dict: `latencies`, seconds of each request that was answered; `sentences`, their number;
        `seconds`, until the last answer; `cpu`, seconds of all threads; `errors`, the messages of
        the other requests.
    """
    tensors = itertools.cycle([tf.constant(request) for request in requests])
    lock, latencies, errors, sentences = threading.Lock(), [], [], []
    start, cpu = time.monotonic(), time.process_time()

    def send():
        while time.monotonic() < start + seconds:
            with lock:
                text = next(tensors)
            sent = time.monotonic()
            try:
                call(text=text)
            except tf.errors.OpError as error:
                errors.append(error.message)
            else:
                latencies.append(time.monotonic() - sent)
                sentences.append(len(text))

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(send) for _ in range(threads)]:
            future.result()
    total, cpu = time.monotonic() - start, time.process_time() - cpu
    counts = {"sentences": sum(sentences), "latencies": latencies, "errors": errors}
    return counts | {"seconds": total, "cpu": cpu}


def describe(found: dict) -> list[str]:
    """Returns lines with the rate, the latencies and the errors that `load_test` measured."""
    cpu = found["cpu"] / max(found["sentences"], 1) * 1000
    p50, p99 = np.percentile(found["latencies"] or [np.nan], [50, 99]) * 1000
    lines = [
        f"requests     {len(found['latencies']):,} in {found['seconds']:.1f} s",
        f"throughput   {found['sentences'] / found['seconds']:,.1f} sentences/s",
        f"CPU time     {cpu:,.1f} ms per sentence",
        f"latency      p50 {p50:,.0f} ms, p99 {p99:,.0f} ms",
        f"errors       {len(found['errors']):,}",
    ]
    return lines + [f"  {message.splitlines()[0]}" for message in sorted({*found["errors"]})[:3]]


def main(argv):
    values = flags.FLAGS
    tf.config.threading.set_intra_op_parallelism_threads(values.intra_op_threads)
    before = resident_megabytes()
    model = tf.saved_model.load(values.saved_model)
    call = model.signatures["serving_default"]
    if values.batching_config is not None:
        call = batched(call, Path(values.batching_config).read_text())
    lines = Path(values.text).read_text().splitlines()
    count = values.sentences
    requests = [lines[i : i + count] for i in range(0, max(len(lines) - count + 1, 1), count)]
    try:
        call(text=tf.constant(requests[0]))  # TensorFlow optimizes the graph in the first call.
    except tf.errors.OpError as error:
        raise SystemExit(f"The first request failed: {error.message.splitlines()[0]}") from None
    loaded = resident_megabytes()
    found = load_test(call, requests, seconds=values.seconds, threads=values.threads)
    print("\n".join(describe(found)))
    print(
        f"memory       {before:,.0f} MB after imports, {loaded:,.0f} MB after the first request, "
        f"{resident_megabytes():,.0f} MB at the end, peak {resident_megabytes(peak=True):,.0f} MB"
    )


if __name__ == "__main__":
    define_flags()
    app.run(main)
