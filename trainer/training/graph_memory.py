"""Memory of the tensors of a traced function, from their static shapes."""

import collections

import tensorflow as tf

# Operations whose output has the buffer of an input, or of a variable.
_VIEWS = ("Identity", "IdentityN", "Reshape", "ExpandDims", "Squeeze", "StopGradient")
_VIEWS += ("PreventGradient", "EnsureShape", "ReadVariableOp")
_WITHOUT_BUFFER = ("Placeholder", "Const")
_FUNCTIONS = ("f", "body", "then_branch", "else_branch")


def peak_memory(graph: tf.Graph, outputs) -> int:
    """Returns the most bytes that the tensors of a graph of known shapes need together.

    Operations run in the order of the graph, and a tensor is freed after its last use. Inputs,
    variables, constants and `outputs` are not counted.
    """
    operations = graph.get_operations()
    buffers = _buffers(operations)
    excluded = {None} | {buffers[output.ref()] for output in outputs}
    last_use = {}
    for number, operation in enumerate(operations):
        for tensor in (*operation.outputs, *operation.inputs):
            last_use[buffers[tensor.ref()]] = number
    freed = collections.defaultdict(int)
    for buffer, number in last_use.items():
        if buffer not in excluded:
            freed[number] += _size(buffer.deref())
    used = most = 0
    for number, operation in enumerate(operations):
        own = {tensor.ref() for tensor in operation.outputs} - excluded
        used += sum(_size(tensor.deref()) for tensor in own if buffers[tensor] == tensor)
        most = max(most, used + _peak_of_functions(operation))
        used -= freed[number]
    return most


def _buffers(operations):
    """Returns the tensor that owns the buffer of each tensor, or None for those not counted."""
    buffers = {}
    for operation in operations:
        for number, tensor in enumerate(operation.outputs):
            owner = tensor.ref()
            if operation.type in _WITHOUT_BUFFER:
                owner = None
            elif operation.type in _VIEWS:
                owner = buffers[operation.inputs[number].ref()]
            buffers[tensor.ref()] = owner
    return buffers


def _peak_of_functions(operation):
    attributes = operation.node_def.attr
    names = [attributes[x].func.name for x in _FUNCTIONS if x in attributes]
    functions = [operation.graph._get_function(name) for name in names if name]
    return max((peak_memory(f.graph, f.graph.outputs) for f in functions if f), default=0)


def _size(tensor):
    has_size = tensor.dtype not in (tf.resource, tf.variant, tf.string)
    return tensor.dtype.size * (tensor.shape.num_elements() or 0) if has_size else 0
