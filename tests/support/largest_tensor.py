"""The size of the largest tensor that a program makes."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """Records the number of entries of the largest tensor that an operation returns."""

    def __init__(self):
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        outputs = function(*args, **(kwargs or {}))
        for x in tree_leaves(outputs):
            # Expanded tensors take no memory.
            if isinstance(x, torch.Tensor) and not x._is_view():
                self.size = max(self.size, x.numel())
        return outputs
