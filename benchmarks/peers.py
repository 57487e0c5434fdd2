"""Peers that are measured in processes of their own, which take turns."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path


class Peer:
    """A process that reads lines of JSON and answers each with one. It says "ready" first.

    Args:
        script: the worker's program, beside this file.
        settings: what the worker is told: its kind, threads, and more; `variables`, if any, are put into its environment.
        python: that runs it.
    """

    def __init__(self, script: str, settings: dict, python: str = sys.executable):
        environment = {
            "OMP_NUM_THREADS": str(settings["threads"]),
            "CUDA_VISIBLE_DEVICES": "",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        self.process = subprocess.Popen(
            [python, str(Path(__file__).with_name(script)), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment | settings.get("variables", {}),
        )
        self.kind = settings["kind"]

    @classmethod
    @contextlib.contextmanager
    def all(cls, script: str, settings: dict[str, dict], pythons: dict[str, str | None]):
        """Peers by name, ready; ended when the block ends. Kinds that `pythons` has not get this process's Python."""
        with contextlib.ExitStack() as stack:
            peers = {}
            for name, each in settings.items():
                peers[name] = cls(script, each, pythons.get(each["kind"], sys.executable))
                stack.callback(peers[name].end)
            for peer in peers.values():
                peer.answer()
            yield peers

    def ask(self, message):
        """The answer to a message, both of what JSON can hold."""
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"The process of {self.kind} ended with {self.process.wait()}; what it printed stands above."
            )
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def with_python(names, pythons: dict[str, str | None]) -> list[str]:
    """Those names whose Python can be run; says which are left out. Names that `pythons` has not need none of their own."""
    missing = [
        name
        for name, python in pythons.items()
        if name in names and (python is None or not os.access(python, os.X_OK))
    ]
    for name in missing:
        print(f"{name} is left out: no Python at --{name}_python={pythons[name]}.", file=sys.stderr)
    return [name for name in names if name not in missing]


def in_turns(names, runs: int):
    """`(run, name)` for every run and name, in an order of names that changes from run to run."""
    names = list(names)
    for run in range(runs):
        first = run % len(names)
        for name in names[first:] + names[:first]:
            yield run, name
