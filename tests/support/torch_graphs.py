"""Graphs that torch.compile makes."""

import torch
from torch._dynamo.testing import CompileCounterWithBackend


def compiled(function, **options):
    """Returns (compiled function, function that returns its number of graphs).

    `options` are those of torch.compile. A graph of a part of the function is an error.
    """
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(function, fullgraph=True, backend=counter, **options)
    return function, lambda: len(counter.graphs)
