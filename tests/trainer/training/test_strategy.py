import json
import re

import numpy as np
import pytest
import tensorflow as tf

from t2t_relpos.attention import dispatch
from t2t_relpos.layers import RelativeMultiHeadAttention
from trainer.config import RunConfig
from trainer.training import strategy
from trainer.training.strategy import (
    WorkerGroup,
    WorkerLostError,
    check_xla,
    device_settings,
    make_strategy,
    workers_of,
)

RUN = {"preset": "tiny", "model_dir": "x", "data": "any"}


def test_strategy_named_one_is_the_default_of_tensorflow():
    assert make_strategy("one") is tf.distribute.get_strategy()


@pytest.fixture
def with_gpus(monkeypatch):
    """Makes TensorFlow report a number of GPUs that don't exist."""

    def set_number(gpus):
        fake = lambda kind=None: [f"GPU {i}" for i in range(gpus)] if kind == "GPU" else []
        for name in ("list_physical_devices", "get_visible_devices"):
            monkeypatch.setattr(tf.config, name, fake)

    return set_number


WITH_XLA, WITHOUT_XLA = ({"strategy": "mirrored", "jit_compile": x} for x in (True, False))


@pytest.mark.parametrize(
    ("gpus", "settings", "recorded", "expected"),
    [
        (0, {}, None, ("one", False)),
        (1, {}, None, ("one", True)),
        (2, {}, None, ("mirrored", False)),
        (2, {"strategy": "one"}, None, ("one", True)),
        (2, {"strategy": "multiworker"}, None, ("multiworker", False)),
        (1, {"strategy": "mirrored"}, None, ("mirrored", False)),
        (0, {"logical_devices": 2}, None, ("mirrored", False)),
        (0, {"jit_compile": True}, None, ("one", True)),
        (1, {"jit_compile": False}, None, ("one", False)),
        (2, {"jit_compile": True}, None, ("mirrored", True)),
        (1, {"deterministic": True}, None, ("one", False)),
        # A resumed run keeps XLA with the same strategy.
        (2, {}, WITH_XLA, ("mirrored", True)),
        (2, {"jit_compile": False}, WITH_XLA, ("mirrored", False)),
        (2, {"deterministic": True}, WITH_XLA, ("mirrored", False)),
        (2, {"jit_compile": True}, WITHOUT_XLA, ("mirrored", True)),
        (2, {}, WITH_XLA | {"strategy": "one"}, ("mirrored", False)),
        (1, {}, WITHOUT_XLA | {"strategy": "one"}, ("one", False)),
        (1, {}, WITHOUT_XLA, ("one", True)),
        (0, {}, WITH_XLA | {"strategy": "one"}, ("one", True)),
        (2, {"strategy": "multiworker"}, WITH_XLA, ("multiworker", False)),
    ],
)
def test_strategy_and_xla_of_a_machine(gpus, settings, recorded, expected, with_gpus):
    with_gpus(gpus)
    found = device_settings(RunConfig(**RUN, **settings), recorded)
    assert (found["strategy"], found["jit_compile"]) == expected


@pytest.mark.parametrize("error", [None, "InternalError: no libdevice"])
def test_run_continues_without_xla_if_a_small_program_fails(error, monkeypatch, caplog):
    checked = []
    monkeypatch.setattr(strategy, "xla_error", lambda devices: checked.append(devices) or error)
    settings = {"strategy": "mirrored", "jit_compile": True}
    assert check_xla(settings, "devices") == settings | {"jit_compile": error is None}
    assert checked == ["devices"]
    line = "Training continues without XLA. A small compiled program failed: " + str(error)
    assert [record.message for record in caplog.records] == ([] if error is None else [line])


@pytest.mark.parametrize(
    "settings", [{"strategy": "mirrored", "jit_compile": False}, {"jit_compile": True}]
)
def test_no_program_runs_without_xla_or_on_one_device(settings, monkeypatch):
    monkeypatch.setattr(strategy, "xla_error", None)
    found = device_settings(RunConfig(**RUN, **settings))
    assert check_xla(found, "devices") is found


def test_mirrored_strategy_selects_the_attention_of_gpus(with_gpus, monkeypatch):
    """`fit` traces a step for batches of all sizes and lengths, without XLA."""
    with_gpus(2)
    calls, select = [], dispatch.select

    def recording_select(call, implementation=None):
        candidates = select(call, implementation)
        calls.append((call.device, call.xla, [each.implementation.name for each in candidates]))
        return candidates

    monkeypatch.setattr(dispatch, "select", recording_select)
    one = tf.distribute.MirroredStrategy(["CPU:0"])
    with one.scope():
        layer = RelativeMultiHeadAttention(2, 3, max_relative_position=2)
        layer.build((None, None, 6), (None, None, 6))
    run = tf.function(
        lambda x: one.run(lambda: layer(x, x, training=True)),
        input_signature=[tf.TensorSpec((None, None, 6))],
    )
    x = np.random.default_rng(3).normal(size=(2, 101, 6)).astype("float32")
    found = run(x)
    assert calls == [("gpu", False, ["full_matrix", "blocks"])]
    with_gpus(0)
    np.testing.assert_allclose(found, layer(x, x), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "logical_devices", "message"),
    [
        ("multiworker", None, "the environment variable TF_CONFIG .*. Received: none"),
        ("one", 2, "logical_devices only with the strategy mirrored. Received: 2"),
        ("mirrored", None, "at least one GPU .*. Use --strategy=one, or .* --logical_devices=2"),
    ],
)
def test_strategy_that_can_not_be_made_raises(name, logical_devices, message, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    tf.zeros([])
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [])
    with pytest.raises(ValueError, match=f"Expected {message}"):
        make_strategy(name, logical_devices)


def test_devices_and_sums_over_them_are_not_logged(monkeypatch, caplog):
    devices = tf.config.list_logical_devices("CPU")
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: devices)
    with caplog.at_level("INFO", tf.get_logger().name):
        make_strategy("mirrored")
        tf.get_logger().info("Collective all_reduce tensors: 1 all_reduces")
    assert not caplog.records


WORKERS = ["first:12345", "second:12345", "third:12345"]


def config(workers=WORKERS, kind="worker", index=2, **others):
    cluster = {"worker": workers} | others
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def test_workers_of_tf_config():
    assert workers_of({"TF_CONFIG": config()}) == (WORKERS, 2)


@pytest.mark.parametrize(
    "tf_config",
    [
        "",
        "{",
        "[]",
        config(ps=["fourth:1"]),
        config("first:12345"),
        config(["first", "second"]),
        config(WORKERS[:1]),
        config(WORKERS[:1] * 2),
        config(index=3),
        config(kind="chief", index=0),
        config(index="0"),
    ],
)
def test_invalid_tf_config_raises(tf_config):
    message = "Expected the environment variable TF_CONFIG with the addresses of two or more"
    received = re.escape(tf_config or "none. Set it on every worker, like TF_CONFIG='{")
    with pytest.raises(ValueError, match=f"{message} workers .* Received: {received}"):
        workers_of({"TF_CONFIG": tf_config} if tf_config else {})


class Second(WorkerGroup):
    """The second worker of several. The chief's value is always 7."""

    def __init__(self, addresses=("host0:12345", "host1:12345"), have_met=True):
        self.size, self.index = len(addresses), 1
        self._addresses, self._have_met = addresses, have_met

    def from_chief(self, value):
        return 7.0


def test_single_process_is_the_chief():
    single = WorkerGroup(tf.distribute.get_strategy())
    assert (single.size, single.index, single.is_chief) == (1, 0, True)
    assert single.from_chief(2.5) == 2.5 and single.from_chief(None) is None
    with single.chief_first():
        single.wait()
    single.check_same(3, "the same")
    with pytest.raises(tf.errors.UnavailableError):
        with single.detecting_lost_workers(lambda: ""):
            raise tf.errors.UnavailableError(None, None, "")


def test_value_that_differs_from_the_chief_raises():
    Second().check_same(7, "the same step")
    message = "Expected the same step on all workers. Received: 8 on worker 1, 7 on worker 0"
    with pytest.raises(ValueError, match=message):
        Second().check_same(8, "the same step")


TENSORFLOW_MESSAGE = """Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
  File "train.py", line 33, in <module>

Collective ops is aborted by: failed to connect to all addresses
The error could be from a previous operation.
\t [[{{node CollectiveReduceV2}}]] [Op:__inference_1]"""


CAUSE = (
    "UnavailableError: Collective ops is aborted by: failed to connect to all addresses The error "
    "could be from a previous operation."
)


LOST = "Lost connection to worker 0 at host0:12345 (detected by worker 1 of 2: {}). Start again."
NEVER_MET = (
    "Expected a connection of all 2 workers. Received: worker 1 of 2 never reached worker 0 at "
    "host0:12345 ({}). Compare TF_CONFIG on all workers: "
)
THREE = {"addresses": ("a:111", "b:222", "c:333")}
OF_THREE = "Lost connection to {} (detected by worker 1 of 3: "


@pytest.mark.parametrize(
    ("message", "settings", "expected"),
    [
        (TENSORFLOW_MESSAGE, {}, LOST.format(CAUSE)),
        (TENSORFLOW_MESSAGE, {"have_met": False}, NEVER_MET.format(CAUSE)),
        # A worker that TensorFlow names is the lost one.
        ("no answer of ipv4:10.0.0.7:333: refused", THREE, OF_THREE.format("worker 2 at c:333")),
        ("/job:worker/replica:0/task:0 has stopped", THREE, OF_THREE.format("worker 0 at a:111")),
        ("/job:worker/task:0 and /job:worker/task:2 stopped", THREE, OF_THREE.format("a worker")),
        ("a peer has stopped", THREE, OF_THREE.format("a worker")),
    ],
)
def test_lost_worker_raises(message, settings, expected):
    with pytest.raises(WorkerLostError, match=re.escape(expected)):
        with Second(**settings).detecting_lost_workers(lambda: "Start again."):
            raise tf.errors.UnavailableError(None, None, message)
