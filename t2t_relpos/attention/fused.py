"""Relative attention by fused kernels for NVIDIA GPUs, `backend.torch_fused`."""

import dataclasses

from t2t_relpos import backend
from t2t_relpos.attention import blockwise
from t2t_relpos.attention.blockwise import DIFFERENTIABLE
from t2t_relpos.attention.flash import combined_key_mask


def attend(call, sizes):
    """Returns (the outputs `[B, N, T, H]`, None) of a call with known lengths and offset.

    The kernel has no second derivatives and batches of gradients: blocks of `sizes` compute them.
    """
    call = dataclasses.replace(call, mask=None, key_mask=combined_key_mask(call))
    kernel = backend.fused_kernel()
    settings = [*call.distances, call.query_offset, int(call.causal)]

    def arguments(tensors):
        return *(tensors.get(name) for name in (*DIFFERENTIABLE, "key_mask")), settings

    def forward(tensors):
        outputs, log_sums = kernel.forward(*arguments(tensors))
        # Callers may change the outputs in place.
        return outputs.clone(), (outputs, log_sums)

    def backward(tensors, saved, d_outputs):
        return dict(zip(DIFFERENTIABLE, kernel.backward(*arguments(tensors), *saved, d_outputs)))

    def outputs_by_blocks(tensors):
        of_blocks = dataclasses.replace(call, **tensors)
        return blockwise.attend(of_blocks, sizes, unrolled=False)[0]

    tensors = {name: getattr(call, name) for name in (*DIFFERENTIABLE, "key_mask")}
    tensors = {name: x for name, x in tensors.items() if x is not None}
    return backend.custom_gradient(forward, backward, outputs_by_blocks, tensors), None
