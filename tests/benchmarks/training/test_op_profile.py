"""Tests of the training step's op profile."""

import re

import pytest
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from benchmarks.training import op_profile


def make_profile(*events):
    """Returns a profile with the given events (name, picoseconds)."""
    space = xplane_pb2.XSpace()
    plane = space.planes.add()
    line = plane.lines.add()
    for number, (name, picoseconds) in enumerate(events):
        plane.event_metadata[number].name = name
        line.events.add(metadata_id=number, duration_ps=picoseconds)
    return space


def test_sum_by_op_type_sums_times_and_executions():
    seconds, executions = op_profile.sum_by_op_type(
        make_profile(
            ("model/dense/MatMul:MatMul", 3 * 10**12),
            ("model/other/MatMul:MatMul#id=5#", 2 * 10**12),
            ("add:AddV2", 7 * 10**11),
            ("ExecutorState::Process", 10**13),
            ("multi_step_on_iterator", 10**13),
        )
    )
    assert dict(seconds) == {"MatMul": 5.0, "AddV2": 0.7}
    assert dict(executions) == {"MatMul": 2, "AddV2": 1}


@pytest.mark.slow
def test_op_profile_rows_sum_to_the_step_time(run):
    sizes = ["--vocab_size=331", "--batch_tokens=67", "--steps=2", "--rows=3"]
    done = run("training.op_profile", *sizes, "--position=sinusoidal")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    step = float(re.fullmatch(r"tiny, sinusoidal, (\d+) ms/step, \d+ tokens/step", lines[0])[1])
    rows = [line.strip("| ").split(" | ") for line in lines[4:]]
    assert len(rows) == 5
    assert "other types" in rows[3][0]
    assert rows[4][0] == "outside ops"
    assert sum(float(row[-2]) for row in rows) == pytest.approx(step, abs=0.8)
    assert sum(float(row[-1].rstrip("%")) for row in rows) == pytest.approx(100, abs=0.4)
