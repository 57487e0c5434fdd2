"""Functions of a model on PyTorch, which runs them eagerly."""


def compile_function(model, function, *, jit_compile):
    """Returns `function` without recording of gradients, which would keep all steps in memory.

    Args:
        model: not used.
        function: function of tensors.
        jit_compile: not used.
    """
    # Doctest collection imports this module where PyTorch is not installed.
    import torch

    return torch.no_grad()(function)
