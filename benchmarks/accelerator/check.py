"""Tests and measures relative attention on the GPU of the Keras backend: `make gpu-check`.

    KERAS_BACKEND=torch python -m benchmarks.accelerator.check | tee gpu.md

Exits with status 2 if the backend finds no GPU. It runs, within --budget_s:

    1. the tests of attention and layers with the marker `gpu`, for at most a third of the time
    2. on TensorFlow, training on one GPU and on all GPUs, with and without XLA
    3. attention, forward and backward, next to plain and flash attention, and a training step of
       a Transformer

Parts of step 3, all forward and backward:
    core      attention of given queries, keys and values
    layer     the multi-head attention layer
    training  a training step of a Transformer, in source and target tokens per second

Implementations:
    plain            this library without tables; in `layer` keras.layers.MultiHeadAttention without
                     its fused kernels; in `training` sinusoidal position encodings
    flash            jax.nn.dot_product_attention or scaled_dot_product_attention of PyTorch
    relative         relative attention with its default settings
    relative_linear  relative attention with memory linear in length

The most important rows come first, and each is printed when it has been measured. The name of an
implementation is followed by the rows of `dispatch.TABLE` that it used. Rows for which there was no
time are listed at the end. PyTorch and JAX need no TensorFlow.
"""

import contextlib
import os
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# This process and the tests share the device.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import keras
from absl import app, flags

from benchmarks.accelerator.comparison import HEADER, Comparison
from benchmarks.attention.steps import Case
from benchmarks.flag_checks import check_no_arguments, positive_integers
from benchmarks.tables import print_cells, print_header
from benchmarks.workers import ROOT, child_environment, take_turns
from t2t_relpos._backend import device
from t2t_relpos.attention import dispatch

FLAGS = flags.FLAGS
flags.DEFINE_float("budget_s", 180.0, "Seconds for everything.", lower_bound=1.0)
flags.DEFINE_bool("allow_cpu", False, "Run on the CPU if there is no GPU, to try the program.")
flags.DEFINE_list(
    "lengths", "4096,1024,16384,2048,512,8192", "Numbers of positions, most important first."
)
flags.DEFINE_integer("batch_tokens", 16384, "Positions per batch.", lower_bound=1)
flags.DEFINE_string("preset", "shaw_base", "Architecture of the Transformer.")
flags.DEFINE_integer("vocab_size", 32000, "Vocabulary size of the Transformer.", lower_bound=4)
flags.DEFINE_integer("pairs", 64, "Sentence pairs per batch of training.", lower_bound=1)
flags.DEFINE_integer("pair_length", 64, "Length of both sides of a pair.", lower_bound=2)
flags.DEFINE_integer(
    "logical_devices", 0, "On TensorFlow, split the CPU into this number of devices.", lower_bound=0
)
DTYPE = "bfloat16"
# Turns of each implementation, and steps of each training run on TensorFlow.
RUNS = 20
# Seconds after which no further turn of a comparison begins.
TURNS_S = 2.0
# TF32 would round the float32 products that tests compare.
FULL_PRECISION = {"NVIDIA_TF32_OVERRIDE": "0", "JAX_DEFAULT_MATMUL_PRECISION": "highest"}


def main(argv):
    check_no_arguments(argv)
    if device() == "cpu" and not FLAGS.allow_cpu:
        print(
            f"No GPU found by the Keras backend {keras.backend.backend()}. Install a build of the "
            "backend for your GPU, or set KERAS_BACKEND to jax, tensorflow or torch. --allow_cpu "
            "runs the same on the CPU.",
            file=sys.stderr,
        )
        sys.exit(2)
    print(describe_device(), flush=True)
    check = Check(FLAGS.budget_s)
    check.run_tests()
    if keras.backend.backend() == "tensorflow":
        check.train()
    check.compare(comparisons())
    check.report()
    sys.exit(1 if check.failed else 0)


def comparisons() -> list[Comparison]:
    """Returns all comparisons, most important first."""
    first, others = (lengths := positive_integers("lengths"))[:2], lengths[2:]
    sizes = FLAGS.vocab_size, FLAGS.pairs, FLAGS.pair_length
    return [
        *attention_comparisons("layer", first),
        Comparison.of_training(DTYPE, FLAGS.preset, sizes),
        *attention_comparisons("core", first),
        *attention_comparisons("layer", others),
        *attention_comparisons("core", others),
    ]


def attention_comparisons(part: str, lengths: list[int]) -> list[Comparison]:
    """Returns the comparisons of a part in both directions."""
    return [
        Comparison.of_attention(Case(part, direction, DTYPE, n, max(1, FLAGS.batch_tokens // n)))
        for n in lengths
        for direction in ("bidirectional", "causal")
    ]


class Check:
    """Runs the parts of the check.

    Args:
        budget: seconds after which nothing begins.

    Attributes:
        failed: names of tests and implementations of this library that failed.
        left_out: names of the parts for which there was no time.
    """

    def __init__(self, budget: float):
        self.budget, self._start = budget, time.perf_counter()
        self.failed, self.left_out = [], []

    @property
    def seconds_left(self):
        return self._start + self.budget - time.perf_counter()

    def run_tests(self):
        """Runs the tests with the marker `gpu`."""
        # Other test modules import packages that this program does not need.
        paths = [*(ROOT / "tests/attention").glob("*.py"), *(ROOT / "tests/layers").glob("*.py")]
        paths = sorted(str(path) for path in paths if "pytest.mark.gpu" in path.read_text())
        command = [sys.executable, "-m", "pytest", "-vv", "--no-header", "--disable-warnings"]
        command += ["-W", "default", "-p", "no:cacheprovider", "-m", "gpu", *paths]
        limit = self.seconds_left / 3
        try:
            status = subprocess.run(
                command, cwd=ROOT, env=child_environment() | FULL_PRECISION, timeout=limit
            ).returncode
        except subprocess.TimeoutExpired:
            self.left_out.append(f"tests that did not end in {limit:.0f} s")
        else:
            if status:
                self.failed.append("tests")

    def train(self):
        """Trains with TensorFlow on one and on all devices, and compares the losses."""
        from benchmarks.accelerator import tensorflow_training as training

        sizes, first = (FLAGS.vocab_size, FLAGS.pairs, FLAGS.pair_length), None
        print()
        print_header(training.HEADER)
        for run in training.runs(FLAGS.logical_devices):
            if self.seconds_left <= 0:
                self.left_out.append(str(run))
                continue
            try:
                result = training.train(run, FLAGS.preset, sizes, RUNS)
            except Exception as error:  # The other runs are of interest.
                print_cells([str(run), one_line(error)])
                self.failed.append(str(run))
                continue
            first = first or result
            print_cells(result.cells(run, first))
            if result.difference(first) > training.LIMIT:
                self.failed.append(f"{run}: other losses than the first run")

    def compare(self, comparisons: list[Comparison]):
        """Measures comparisons and prints their rows."""
        print()
        print_header(HEADER)
        for comparison in comparisons:
            steps, used, missing = {}, {}, []
            for name, make in comparison.makers.items():
                if self.seconds_left <= 0:
                    missing.append(name)
                    continue
                with self.report_failure(comparison, name):
                    step = make()
                    with recorded_rows() as rows:
                        step()
                        step()
                    steps[name], used[name] = step, f" ({', '.join(rows)})" if rows else ""
            if steps:
                times = take_turns(steps, RUNS, TURNS_S)
                for name in steps:
                    cells = comparison.cells(name, times)
                    print_cells([*cells[:5], name + used[name], *cells[6:]])
            if missing:
                self.left_out.append(comparison.describe(*(missing if steps else ())))

    @contextlib.contextmanager
    def report_failure(self, comparison, name):
        """Context manager: prints an exception of an implementation as a row, and continues."""
        try:
            yield
        except Exception as error:  # Each backend has its own exception for too little memory.
            print_cells([*map(str, comparison.settings), name, one_line(error), "", "", ""])
            if name.startswith("relative"):
                self.failed.append(comparison.describe(name))

    def report(self):
        """Prints what failed and what was left out."""
        print()
        for title, names in (("Failed", self.failed), ("Not measured", self.left_out)):
            print(f"{title}: {'; '.join(names) or 'nothing'}.")
        print(f"{self.budget - self.seconds_left:.0f} s of {self.budget:.0f} s", flush=True)


def one_line(error: Exception) -> str:
    """Returns an exception as text for a cell of a table."""
    return " ".join(f"{type(error).__name__}: {error}".replace("|", " ").split())[:150]


def describe_device() -> str:
    """Returns the names and versions of the device and the backend."""
    backend = keras.backend.backend()
    version = __import__(backend).__version__
    return f"{_device_name(backend)}, {backend} {version}, Keras {keras.__version__}"


def _device_name(backend):
    if device() == "cpu":
        return "CPU"
    if backend == "jax":
        import jax

        return jax.devices()[0].device_kind
    if backend == "torch":
        import torch

        return torch.cuda.get_device_name()
    import tensorflow as tf

    details = tf.config.experimental.get_device_details(tf.config.get_visible_devices("GPU")[0])
    return details.get("device_name", "GPU")


@contextlib.contextmanager
def recorded_rows():
    """Yields a list of the names of the rows of `dispatch.TABLE` that run or are traced."""
    names, select = [], dispatch.select

    def recording_select(call, implementation=None):
        candidates = select(call, implementation)
        names.extend(c.implementation.name for c in candidates)
        names[:] = dict.fromkeys(names)
        return candidates

    dispatch.select = recording_select
    try:
        yield names
    finally:
        dispatch.select = select


if __name__ == "__main__":
    app.run(main)
