"""Benchmarks, run in separate processes."""

from subprocesses import run_python

from benchmarks.workers import ROOT, child_environment


def run(name, *flags, **options):
    """Runs `python -m benchmarks.NAME`. Options are those of `run_python`."""
    environment = child_environment() | {"CUDA_VISIBLE_DEVICES": ""}
    return run_python("-m", f"benchmarks.{name}", *flags, cwd=ROOT, env=environment, **options)


def run_table(name, *flags):
    """Runs a benchmark. Returns the cells of the table that it prints."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in run(name, *flags).stdout.splitlines()
        if line.startswith("| ") and "---" not in line
    ]
