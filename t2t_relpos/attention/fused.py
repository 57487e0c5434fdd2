"""Relative attention by fused kernels for NVIDIA GPUs, `backend.torch_fused`."""

import dataclasses

from t2t_relpos import backend
from t2t_relpos.attention import blockwise
from t2t_relpos.attention.flash import combined_key_mask
from t2t_relpos.attention.tables import Results, differentiate

DIFFERENTIABLE = "query", "key", "value", "key_table", "value_table"


def attend(call, sizes):
    """Returns the outputs of a call with known lengths and offset.

    The kernel has no second derivatives and batches of gradients: blocks of `sizes` compute them.
    """
    call = dataclasses.replace(call, mask=None, key_mask=combined_key_mask(call))
    kernel = backend.fused_kernel()

    def arguments(call):
        tensors = (getattr(call, name) for name in (*DIFFERENTIABLE, "key_mask"))
        return *tensors, [*call.distances, call.query_offset, int(call.causal)]

    def forward(call):
        outputs, log_sums = kernel.forward(*arguments(call))
        # Callers may change the outputs in place.
        return Results(outputs.clone()), (outputs, log_sums)

    def backward(call, saved, d_results):
        tensors = *arguments(call), *saved, d_results.outputs
        return dict(zip(DIFFERENTIABLE, kernel.backward(*tensors)))

    def attend_in_blocks(call):
        return blockwise.attend(call, sizes, save_weights=False)

    return differentiate(call, forward, backward, attend_in_blocks)
