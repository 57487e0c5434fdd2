"""Tests and measures relative attention on the GPU of the Keras backend: `make gpu-check`.

    KERAS_BACKEND=torch python -m benchmarks.accelerator.check | tee gpu.md

Exits with status 2 if the backend finds no GPU. It runs, within --budget_s:

    1. the tests of attention and layers with the marker `gpu`, for at most a third of the time
    2. on TensorFlow, training on one GPU and on all GPUs, with and without XLA; --logical_gpus=2
       splits one GPU
    3. attention, forward and backward, next to plain and flash attention, and a training step of
       a Transformer

Parts of step 3, all forward and backward:
    core      attention of given queries, keys and values
    layer     the multi-head attention layer
    training  a training step of a Transformer, in source and target tokens per second
    w2v-BERT  on PyTorch, the encoder of w2v-BERT 2.0 with one layer, if transformers is installed

Implementations:
    plain            this library without tables; in `layer` keras.layers.MultiHeadAttention without
                     its fused kernels; in `training` sinusoidal position encodings
    flash            jax.nn.dot_product_attention or scaled_dot_product_attention of PyTorch
    relative         relative attention with its default settings
    relative_linear  relative attention with memory linear in length
    row_NAME         relative attention by the row NAME of `dispatch.TABLE`
    tail_only        the fused kernel without a band
    flex             flex_attention of PyTorch, which has the table of keys only
    eager, sdpa      in `w2v-BERT` transformers
    attend, fused    in `w2v-BERT` this library, by `replace_attention`, without and with
                     flash_attention=True

The most important rows come first, and each is printed when it has been measured. The name of an
implementation is followed by the rows of `dispatch.TABLE` that it used. PyTorch and JAX need no
TensorFlow.
"""

import contextlib
import dataclasses
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# This process and the tests share the device.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import keras
import numpy as np
from absl import app, flags

from benchmarks.attention.compiled_steps import wait_for_torch
from benchmarks.attention.steps import KEY_DIM, NUM_HEADS, Case, attention_step
from benchmarks.tables import format_median, print_cells, print_header
from benchmarks.workers import ROOT, child_environment, take_turns
from t2t_relpos import Transformer
from t2t_relpos.attention import dispatch
from t2t_relpos.backend import device
from t2t_relpos.models import TransformerConfig

FLAGS = flags.FLAGS
flags.DEFINE_float("budget_s", 180.0, "Seconds for everything.", lower_bound=1.0)
flags.DEFINE_bool("allow_cpu", False, "Run on the CPU if there is no GPU, to try the program.")
LENGTHS = ["4096", "1024", "16384", "2048", "512", "8192"]
flags.DEFINE_list("lengths", LENGTHS, "Numbers of positions, most important first.")
flags.DEFINE_integer("batch_tokens", 16384, "Positions per batch.", lower_bound=1)
flags.DEFINE_string("preset", "shaw_base", "Architecture of the Transformer.")
flags.DEFINE_integer("vocab_size", 32000, "Vocabulary size of the Transformer.", lower_bound=4)
flags.DEFINE_integer("pairs", 64, "Sentence pairs per batch of training.", lower_bound=1)
flags.DEFINE_integer("pair_length", 64, "Length of both sides of a pair.", lower_bound=2)
flags.DEFINE_integer(
    "logical_gpus",
    0,
    "On TensorFlow, split the first GPU into this number of devices, or the CPU without a GPU.",
    lower_bound=0,
)
flags.DEFINE_integer("gpu_memory_mb", 30_000, "Memory of each logical GPU.", lower_bound=1)
DTYPE = "bfloat16"
# Turns of each implementation, and steps of each training run on TensorFlow.
RUNS = 20
# Ratios of times are to these implementations.
BASELINES = "plain", "flash", "eager", "tail_only"
# Seconds after which no further turn of a comparison begins.
TURNS_S = 2.0
# TF32 would round the float32 products that tests compare.
FULL_PRECISION = {"NVIDIA_TF32_OVERRIDE": "0", "JAX_DEFAULT_MATMUL_PRECISION": "highest"}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Implementations of one computation.

    Args:
        settings: the first five cells of their rows: part, direction, dtype, length, batch size.
        makers: functions that return a step, by implementation.
        tokens: tokens of a step, if its rows report a rate.
    """

    settings: tuple
    makers: dict[str, Callable]
    tokens: int | None = None

    def describe(self, *names: str) -> str:
        """Returns the part, the direction, the length and implementations as text."""
        part, direction, _, length, _ = self.settings
        return " ".join(filter(None, (part, direction, str(length), ", ".join(names))))


def comparisons() -> list[Comparison]:
    """Returns all comparisons, most important first."""
    lengths = [int(length) for length in FLAGS.lengths]
    settings = ("training", "", DTYPE, FLAGS.pair_length, FLAGS.pairs)
    positions = {"plain": "sinusoidal", "relative": "relative"}
    makers = {name: functools.partial(training_step, positions[name]) for name in positions}
    return [
        *attention_comparisons("layer", lengths[:2]),
        Comparison(settings, makers, tokens=2 * FLAGS.pairs * FLAGS.pair_length),
        *attention_comparisons("core", lengths[:2]),
        *w2v_bert_comparisons(),
        *attention_comparisons("layer", lengths[2:]),
        *attention_comparisons("core", lengths[2:]),
    ]


def attention_comparisons(part: str, lengths: list[int]):
    """Yields the comparisons of a part in both directions, compiled with XLA on TensorFlow."""
    # If the time ends within a comparison, the ratio to flash attention has been measured.
    names = ["flash", "relative", "relative_linear", "plain"]
    backend = keras.backend.backend()
    if backend == "tensorflow":
        names.remove("flash")
    if backend == "torch" and part == "core":
        names = ["flash", "row_flash", "relative", "plain"]
        if device() != "cpu" or os.environ.get("TRITON_INTERPRET") == "1":
            names[1:1] = ["row_fused", "tail_only", "flex"]
    for n in lengths:
        for direction in ("bidirectional", "causal"):
            case = Case(part, direction, DTYPE, n, max(1, FLAGS.batch_tokens // n))
            makers = {
                name: functools.partial(attention_step, name, case, xla=True) for name in names
            }
            yield Comparison(dataclasses.astuple(case)[:5], makers)


def w2v_bert_comparisons():
    """Yields comparisons of one layer of w2v-BERT 2.0, if PyTorch and transformers run."""
    if keras.backend.backend() != "torch":
        return
    try:
        from benchmarks.attention.family_steps import make_step
    except ImportError as error:
        print(one_line(error))
        return
    import torch

    where = {"device": "cpu" if device() == "cpu" else "cuda", "dtype": getattr(torch, DTYPE)}
    for frames in (1500, 3000):
        batch_size = max(1, FLAGS.batch_tokens // frames)

        def maker(name, frames=frames, batch_size=batch_size):
            step = make_step("w2v-BERT 2.0", name, frames, batch_size, **where)
            return lambda: (step(), wait_for_torch())

        makers = {
            name: functools.partial(maker, name) for name in ("eager", "sdpa", "attend", "fused")
        }
        yield Comparison(("w2v-BERT", "", DTYPE, frames, batch_size), makers)


def training_step(position: str):
    """Returns a function that runs a training step, compiled with the defaults of Keras."""
    config = TransformerConfig.from_preset(
        FLAGS.preset, vocab_size=FLAGS.vocab_size, position=position
    )
    model = Transformer(config, dtype=f"mixed_{DTYPE}")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss)
    shape = 2, FLAGS.pairs, FLAGS.pair_length
    ids = np.random.default_rng(1).integers(2, FLAGS.vocab_size, shape).astype("int32")

    def step():
        model.train_on_batch({"inputs": ids[0], "targets": ids[1]}, ids[1])
        if keras.backend.backend() == "torch":
            wait_for_torch()

    return step


class Check:
    """Runs the parts of the check. Nothing begins after `budget` seconds.

    `failed` has the names of what failed, `left_out` of that for which there was no time.
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
        paths = sorted(str(path) for path in paths if "mark.gpu" in path.read_text())
        command = [sys.executable, "-m", "pytest", "-vv", "--no-header", "--disable-warnings"]
        command += ["-W", "default", "-p", "no:cacheprovider", "-m", "gpu", *paths]
        limit, variables = self.seconds_left / 3, child_environment() | FULL_PRECISION
        try:
            if subprocess.run(command, cwd=ROOT, env=variables, timeout=limit).returncode:
                self.failed.append("tests")
        except subprocess.TimeoutExpired:
            self.left_out.append(f"tests that did not end in {limit:.0f} s")

    def train(self):
        """Trains with TensorFlow on one and on all devices, and compares the losses."""
        try:
            from benchmarks.accelerator import tensorflow_training as training
        except ImportError as error:  # The other parts don't need the trainer.
            print(one_line(error))
            self.failed.append("training")
            return

        sizes, first = (FLAGS.vocab_size, FLAGS.pairs, FLAGS.pair_length), None
        print()
        print_header(training.HEADER)
        for run in training.runs(FLAGS.logical_gpus, FLAGS.gpu_memory_mb):
            if self.seconds_left <= 0:
                self.left_out.append(str(run))
                continue
            try:
                with recorded_rows() as rows:
                    run.train(FLAGS.preset, sizes, RUNS)
            except Exception as error:  # The other runs are of interest.
                print_cells([str(run), one_line(error)])
                self.failed.append(str(run))
                continue
            first = first or run
            print_cells([*run.cells(first), ", ".join(rows)])
            if run.difference(first) > training.LIMIT:
                self.failed.append(f"{run}: other losses than the first run")

    def compare(self, comparisons: list[Comparison]):
        """Measures comparisons and prints their rows."""
        columns = ["part", "direction", "dtype", "positions", "batch", "implementation", "ms"]
        print()
        print_header([*columns, *(f"over {name}" for name in BASELINES), "tokens/s", "MB"])
        for comparison in comparisons:
            steps, labels, peaks, missing = {}, {}, {}, []
            for name, make in comparison.makers.items():
                if self.seconds_left <= 0:
                    missing.append(name)
                    continue
                try:
                    step = make()
                    with recorded_rows() as rows:
                        step()
                        peaks[name] = peak_memory(step)
                    rows = rows or fused_function_of(name, comparison)
                    steps[name] = step
                    labels[name] = f"{name} ({', '.join(rows)})" if rows else name
                except Exception as error:  # Each backend has its own for too little memory.
                    cells = [*map(str, comparison.settings), name, one_line(error)]
                    print_cells(cells + [""] * (len(BASELINES) + 2))
                    if name not in (*BASELINES, "flex"):
                        self.failed.append(comparison.describe(name))
            times = take_turns(steps, RUNS, TURNS_S) if steps else {}
            for name, seconds in times.items():
                median = np.median(seconds)
                cells = [*map(str, comparison.settings), labels[name], f"{1000 * median:.2f}"]
                for of in BASELINES:
                    ratio = np.divide(seconds, times[of]) if of in times else None
                    cells.append("" if ratio is None else format_median(ratio))
                rate = f"{comparison.tokens / median:,.0f}" if comparison.tokens else ""
                print_cells([*cells, rate, peaks[name]])
            if missing:
                self.left_out.append(comparison.describe(*(missing if steps else ())))

    def report(self):
        """Prints what failed and what was left out."""
        print()
        for title, names in (("Failed", self.failed), ("Not measured", self.left_out)):
            print(f"{title}: {'; '.join(names) or 'nothing'}.")
        print(f"{self.budget - self.seconds_left:.0f} s of {self.budget:.0f} s", flush=True)


def peak_memory(step: Callable) -> str:
    """Runs a step. Returns its peak memory in MB on a GPU of PyTorch, otherwise an empty string."""
    if keras.backend.backend() != "torch" or device() == "cpu":
        step()
        return ""
    import torch

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    return f"{(torch.cuda.max_memory_allocated() - before) / 1e6:,.0f}"


def fused_function_of(name: str, comparison: Comparison) -> list[str]:
    """Returns the name of the kernel that scaled_dot_product_attention of PyTorch selects."""
    part, direction, dtype, length, batch_size = comparison.settings
    if keras.backend.backend() != "torch" or (name, part) != ("flash", "core"):
        return []
    import torch

    where = {"device": "cpu" if device() == "cpu" else "cuda", "dtype": getattr(torch, dtype)}
    x = torch.zeros(batch_size, NUM_HEADS, length, KEY_DIM, **where, requires_grad=True)
    kernel = torch._fused_sdp_choice(x, x, x, is_causal=direction == "causal")
    return [torch.nn.attention.SDPBackend(kernel).name.lower()]


def one_line(error: Exception) -> str:
    """Returns an exception as text for a cell of a table."""
    return " ".join(f"{type(error).__name__}: {error}".replace("|", " ").split())[:150]


def describe_device() -> str:
    """Returns the names and versions of the device and the backend."""
    backend, name = keras.backend.backend(), "CPU"
    module = __import__(backend)
    if device() != "cpu" and backend == "jax":
        name = module.devices()[0].device_kind
    elif device() != "cpu" and backend == "torch":
        name = module.cuda.get_device_name()
    elif device() != "cpu":
        gpu = module.config.get_visible_devices("GPU")[0]
        name = module.config.experimental.get_device_details(gpu).get("device_name", "GPU")
    return f"{name}, {backend} {module.__version__}, Keras {keras.__version__}"


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


def main(_):
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


if __name__ == "__main__":
    app.run(main)
