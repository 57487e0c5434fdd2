"""Translators in processes of their own, as benchmarks/decode.py talks to them."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path


class Peer:
    """A process of decode_worker.py.

    Args:
        settings: what the worker is told: its kind, its model's path, threads, and more.
        python: of its environment.
    """

    def __init__(self, settings: dict, python: str = sys.executable):
        script = Path(__file__).with_name("decode_worker.py")
        environment = {"OMP_NUM_THREADS": str(settings["threads"]), "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
        self.process = subprocess.Popen(
            [python, str(script), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        self.kind = settings["kind"]

    @classmethod
    @contextlib.contextmanager
    def all(cls, settings: dict[str, dict], opennmt_python: str | None):
        """Peers by name, ready; ended when the block ends."""
        with contextlib.ExitStack() as stack:
            peers = {}
            for name, each in settings.items():
                peers[name] = cls(each, opennmt_python if each["kind"] == "opennmt" else sys.executable)
                stack.callback(peers[name].end)
            for peer in peers.values():
                peer.answer()
            yield peers

    def translate(self, batches: list[list[str]]) -> dict:
        """Translates batches: `seconds` of each, all `translations`, and the most `megabytes` held."""
        self.process.stdin.write(json.dumps(batches) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"The process of {self.kind} ended with {self.process.wait()}; what it printed stands above.")
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
