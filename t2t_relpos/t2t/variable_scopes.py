"""Which of a checkpoint's variables are weights, and under which of their names they are known."""

import re

# Next to the weights and the optimizer's slots: the step, running losses, what optimizers and loss
# scaling count.
_COUNTERS = re.compile(
    r"global_step|(losses_avg|train_stats|training)/.*"
    r"|beta[12]_power(_\d+)?|(current_)?loss_scale|(num_)?good_steps|bad_steps"
)
# tensor2tensor, imported before tf.disable_v2_behavior(), makes its kernels with Keras layers.
# Those name a variable by the scopes that are open, one of them a replica's, and count a scope that
# is opened twice:
# transformer/parallel_0_4/transformer/transformer/body/decoder/layer_0_1/ffn/conv1/kernel.
_DOUBLED_SCOPE = re.compile(
    r"(?:while/)?transformer/parallel_\d+(?:_\d+)?/transformer/(?=transformer/)"
)
_COUNTED_LAYER = re.compile(r"/layer_(\d+)_\d+/")


def weights_of(arrays):
    """The weights among a checkpoint's variables, under the names of `weight_names.py`.

    Left out are the step, running losses and optimizers' slots. A slot is named
    after the variable that it belongs to (`NAME/Adam`) or is under
    `training/`.

    Args:
        arrays: a dict: name -> array.

    Returns:
        A dict: name -> array.

    Raises:
        ValueError: several variables are the same weight.

    Example:
    >>> from t2t_relpos.t2t.variable_scopes import weights_of
    >>> weights_of({"global_step": 7, "body/v/kernel": 2, "body/v/kernel/Adam": 3})
    {'body/v/kernel': 2}
    """
    weights, original = {}, {}
    for name, array in arrays.items():
        is_slot = name.rpartition("/")[0] in arrays
        if is_slot or _COUNTERS.fullmatch(name):
            continue
        usual = usual_name(name)
        if usual in weights:
            raise ValueError(
                f"Expected one variable for each weight. Received two for {usual}: "
                f"{original[usual]} and {name}. Replicas that hold separate weights can't be "
                "read."
            )
        weights[usual], original[usual] = array, name
    return weights


def usual_name(name):
    """A variable's name without doubled scopes.

    >>> scope = "transformer/parallel_0_4/transformer/transformer/body"
    >>> usual_name(f"{scope}/decoder/layer_0_1/ffn/conv1/bias")
    'transformer/body/decoder/layer_0/ffn/conv1/bias'
    """
    inner = _DOUBLED_SCOPE.sub("", name, count=1) if _DOUBLED_SCOPE.match(name) else name
    return name if inner == name else _COUNTED_LAYER.sub(r"/layer_\1/", inner)
