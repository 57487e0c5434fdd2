"""Whether PyTorch traces the current code for an export."""

import torch


def is_exporting():
    """Returns whether `torch.onnx.export` or `torch.export.export` traces the current code."""
    return torch.onnx.is_in_onnx_export() or torch.compiler.is_exporting()
