"""The processes that train together, as the environment variable TF_CONFIG names them."""

import dataclasses
import json
import os
from collections.abc import Mapping

EXAMPLE = (
    'TF_CONFIG=\'{"cluster": {"worker": ["host0:12345", "host1:12345"]}, '
    '"task": {"type": "worker", "index": 0}}\', with the same '
    "addresses for every worker and for each its own index"
)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Workers by address, and which of them this process is.

    Example:

    >>> config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
    >>> Cluster.from_environment({"TF_CONFIG": config})
    Cluster(workers=('a:1', 'b:1'), index=1)
    """

    workers: tuple[str, ...]
    index: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Cluster":
        """Reads TF_CONFIG.

        Raises:
            ValueError: where it is missing or not of the form that this needs.
        """
        text = environment.get("TF_CONFIG", "")
        if not text:
            raise _error("none")
        try:
            config = json.loads(text)
            workers, task = config["cluster"]["worker"], config["task"]
            others = sorted(set(config["cluster"]) - {"worker"})
            kind, index = task["type"], task["index"]
        except (ValueError, KeyError, TypeError) as error:
            raise _error(f"{text} ({type(error).__name__}: {error})") from error
        if others:
            raise _error(f"a cluster with {' and '.join(others)} too: {text}")
        if (
            not isinstance(workers, list)
            or not workers
            or not all(isinstance(worker, str) and ":" in worker for worker in workers)
        ):
            raise _error(f"the workers {workers!r}, which is no list of addresses with ports")
        if len(workers) == 1:
            raise _error(f"a single worker, {workers[0]}; for one process use another strategy")
        if len(set(workers)) < len(workers):
            raise _error(f"the workers {workers!r}, with one address twice")
        if kind != "worker" or not isinstance(index, int) or not 0 <= index < len(workers):
            raise _error(f"the task {task!r}, which is none of the {len(workers)} workers")
        return cls(tuple(workers), index)


def _error(received):
    return ValueError(
        "Expected the workers of --strategy=multiworker in the environment variable TF_CONFIG. "
        f"Received: {received}. "
        f"Set it on every worker, like {EXAMPLE}."
    )
