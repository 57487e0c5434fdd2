"""Detects whether PyTorch traces the current code for an export."""


def is_exporting():
    """Returns whether `torch.onnx.export` or `torch.export.export` traces the current code."""
    # Doctest collection imports this module where PyTorch is not installed.
    import torch

    return torch.onnx.is_in_onnx_export() or torch.compiler.is_exporting()
