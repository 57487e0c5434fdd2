"""cuDNN's flash-attention kernel with its log-sum-exp, for causal attention without scaling.

`jax.nn.dot_product_attention` calls the same kernel, but rounds the log-sum-exp to 16 bits, and its
gradient uses the log-sum-exp of the kernel, not the one of the whole attention that
`attention.flash` passes. This module therefore calls private functions of JAX. `has_kernel` returns
False if a version of JAX does not have them, or if they have other parameters.

Arrays have no strides: XLA copies those whose layout is not the one that JAX declares for cuDNN.
"""

import functools
import inspect

import jax.numpy as jnp

LARGEST_DEPTH, LARGEST_DEPTH_BEFORE_HOPPER = 256, 128
# Of the gradient in JAX 0.12, and before.
BACKWARD_PARAMETERS = [
    (
        "scale seed dropout_rate variadic_args mask_type layout sliding_window_length "
        f"{own} return_residual res grad_output"
    ).split()
    for own in ("score_mod cudnn_version", "is_training")
]


@functools.cache
def _cudnn():
    """Returns JAX's module with the kernel, or None if it is not as expected."""
    try:
        from jax._src.cudnn import fused_attention_stablehlo as module

        parameters = inspect.signature(module._dot_product_attention_bwd_rule).parameters
        options = inspect.signature(module.dot_product_attention).parameters
        names = module.MaskType.CAUSAL.name, module.AttentionLayout.BNTH.name
    except (AttributeError, ImportError):
        return None
    matches = list(parameters) in BACKWARD_PARAMETERS and "return_residual" in options
    return module if matches and names == ("CAUSAL", "BNTH") else None


def has_kernel(query):
    """Returns whether JAX computes on an NVIDIA GPU, of the architecture Ampere or later."""
    module = _cudnn()
    if module is None:
        return False
    try:
        return module.check_cudnn_version() > 0 and module.check_compute_capability("8.0")
    except RuntimeError:  # There is no cuDNN or no GPU.
        return False


def supports(query, depth):
    """Returns whether this GPU supports a depth: H, or more with features for masks."""
    is_hopper = _cudnn().check_compute_capability("9.0")
    return depth <= (LARGEST_DEPTH if is_hopper else LARGEST_DEPTH_BEFORE_HOPPER)


def has_masks(query, depth):
    """Returns False: cuDNN has masks as a bias for each pair, so masks are passed as features."""
    return False


def forward(query, key, value, key_mask, is_causal):
    """Returns (outputs, log-sum-exp, None), as in `torch_flash`. `is_causal` must be True."""
    module, length = _cudnn(), query.shape[2]
    outputs, log_sums = module.dot_product_attention(
        *map(_with_two_positions, (query, key, value)),
        mask_type=module.MaskType.CAUSAL,
        qkv_layout="BNTH",
        return_residual=True,
    )
    return outputs[:, :, :length], log_sums[:, :, :length], None


def backward(query, key, value, key_mask, results, d_outputs, is_causal):
    """Returns the gradients of queries, keys and values, as `forward`."""
    module, length, (outputs, log_sums, _) = _cudnn(), query.shape[2], results
    tensors = map(_with_two_positions, (query, key, value, outputs, d_outputs, log_sums))
    query, key, value, outputs, d_outputs, log_sums = tensors
    # A bias, two arrays of lengths, two of offsets, two page tables.
    unused = 7 * [jnp.zeros(0, query.dtype)]
    rule = module._dot_product_attention_bwd_rule
    of_version = {"is_training": True}
    if "score_mod" in inspect.signature(rule).parameters:
        of_version = {"score_mod": None, "cudnn_version": module.check_cudnn_version()}
        unused.append(())  # arguments of `score_mod`
    options = {
        "scale": 1.0,
        "seed": 0,
        "dropout_rate": 0.0,
        "variadic_args": (False, False),
        "mask_type": module.MaskType.CAUSAL,
        "layout": module.AttentionLayout.BNTH.value,
        "sliding_window_length": None,
        "return_residual": False,
        "res": (query, key, value, *unused, log_sums, outputs),
        "grad_output": d_outputs,
    }
    gradients = rule(**options, **of_version)[:3]
    return [x[:, :, :length] for x in gradients]


def _with_two_positions(x):
    """Appends a position of zeros to axis 2 if it has one position, which cuDNN refuses.

    The first query does not attend to the added key. The added query has no effect on gradients,
    because the gradient of its output is zero.
    """
    padding = [(0, 1) if axis == 2 and x.shape[2] == 1 else (0, 0) for axis in range(x.ndim)]
    return jnp.pad(x, padding)
