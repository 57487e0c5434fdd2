import json

import pytest

from trainer.training.cluster import Cluster

WORKERS = ["first:12345", "second:12345", "third:12345"]


CLUSTER, TASK = {"worker": WORKERS}, {"type": "worker", "index": 2}


def config(cluster=CLUSTER, task=TASK):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def test_workers_and_which_this_is():
    assert Cluster.from_environment(config()) == Cluster(tuple(WORKERS), 2)


@pytest.mark.parametrize(
    "environment, message",
    [
        ({}, "Received: none. Set it on every worker, like TF_CONFIG='{"),
        ({"TF_CONFIG": "{"}, r"Received: \{ \(JSONDecodeError"),
        ({"TF_CONFIG": "{}"}, r"Received: \{\} \(KeyError: 'cluster'\)"),
        ({"TF_CONFIG": "[]"}, "TypeError"),
        (config({"worker": WORKERS, "ps": ["fourth:1"]}), "Received: a cluster with ps too"),
        (
            config({"worker": "first:12345"}),
            "Received: the workers 'first:12345', which is no list of addresses with ports",
        ),
        (config({"worker": ["first", "second"]}), "which is no list of addresses with ports"),
        (config({"worker": []}), r"the workers \[\]"),
        (
            config({"worker": WORKERS[:1]}),
            "Received: a single worker, first:12345; for one process use another strategy",
        ),
        (config({"worker": WORKERS[:1] * 2}), "with one address twice"),
        (config(task={"type": "worker", "index": 3}), "which is none of the 3 workers"),
        (config(task={"type": "chief", "index": 0}), "which is none of the 3 workers"),
        (config(task={"type": "worker", "index": "0"}), "which is none of the 3 workers"),
    ],
)
def test_errors(environment, message):
    with pytest.raises(ValueError, match=message) as caught:
        Cluster.from_environment(environment)
    assert (
        "Expected the workers of --strategy=multiworker in the environment variable TF_CONFIG"
        in str(caught.value)
    )
