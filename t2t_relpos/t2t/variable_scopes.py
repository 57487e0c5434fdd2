"""Selects the weights among a checkpoint's variables and normalizes their names."""

import re

# Variables that are neither weights nor optimizer slots: the global step, running losses, and the
# counters of optimizers and of loss scaling.
_COUNTERS = re.compile(
    r"global_step|(losses_avg|train_stats|training)/.*"
    r"|beta[12]_power(_\d+)?|(current_)?loss_scale|(num_)?good_steps|bad_steps"
)
# If tensor2tensor is imported before tf.disable_v2_behavior(), Keras layers create its kernels.
# Keras prefixes variable names with all open scopes, including the replica's, and numbers scopes
# that are opened twice:
# transformer/parallel_0_4/transformer/transformer/body/decoder/layer_0_1/ffn/conv1/kernel.
_DOUBLED_SCOPE = re.compile(
    r"(?:while/)?transformer/parallel_\d+(?:_\d+)?/transformer/(?=transformer/)"
)
_COUNTED_LAYER = re.compile(r"/layer_(\d+)_\d+/")


def canonical_weights(arrays):
    """Returns the weights among a checkpoint's variables, under the names of `weight_names.py`.

    The global step, running losses and optimizer slots are left out. A slot has the name of its
    variable as prefix (`NAME/Adam`) or is under `training/`.

    Args:
        arrays: a dict that maps variable names to arrays.

    Returns:
        A dict that maps weight names to arrays.

    Raises:
        ValueError: if several variables correspond to the same weight.

    Example:
    >>> from t2t_relpos.t2t.variable_scopes import canonical_weights
    >>> canonical_weights({"global_step": 7, "body/v/kernel": 2, "body/v/kernel/Adam": 3})
    {'body/v/kernel': 2}
    """
    weights, original = {}, {}
    for name, array in arrays.items():
        is_slot = name.rpartition("/")[0] in arrays
        if is_slot or _COUNTERS.fullmatch(name):
            continue
        canonical = canonical_name(name)
        if canonical in weights:
            raise ValueError(
                f"Expected one variable for each weight. Received two for {canonical}: "
                f"{original[canonical]} and {name}. Separate weights for each replica are not "
                "supported."
            )
        weights[canonical], original[canonical] = array, name
    return weights


def canonical_name(name):
    """Returns a variable's name without doubled scopes.

    >>> from t2t_relpos.t2t.variable_scopes import canonical_name
    >>> scope = "transformer/parallel_0_4/transformer/transformer/body"
    >>> canonical_name(f"{scope}/decoder/layer_0_1/ffn/conv1/bias")
    'transformer/body/decoder/layer_0/ffn/conv1/bias'
    """
    inner = _DOUBLED_SCOPE.sub("", name, count=1) if _DOUBLED_SCOPE.match(name) else name
    return name if inner == name else _COUNTED_LAYER.sub(r"/layer_\1/", inner)
