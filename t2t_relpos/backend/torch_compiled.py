"""Functions that torch.compile does not trace, and what exports need instead, on PyTorch.

In a graph for one shape, the operations of such a function are compiled as any others. They can't
be in a graph for several shapes, because the choice of an implementation depends on sizes. There,
the function is a single operation, which computes as without compilation.
"""

import contextlib
import functools
import json
from typing import NamedTuple

import torch

from t2t_relpos.backend import keras_ops


def is_portable():
    # `keras_ops.is_portable` searches the call stack, which torch.compile can't trace.
    is_exporting = torch.onnx.is_in_onnx_export() or torch.compiler.is_exporting()
    return _is_in_portable() or is_exporting or torch.jit.is_tracing()


@torch.compiler.assume_constant_result
def _is_in_portable():
    # torch.compile can't trace the context variable.
    return keras_ops.is_in_portable()


def as_one_node(types, scope):
    """Returns the decorator `t2t_relpos.backend.as_one_node`.

    Args:
        types: as of `t2t_relpos.backend.as_one_node`.
        scope: function of the tensor "query" that returns a context for computing on its device.
    """

    def decorate(function):
        @functools.wraps(function)
        def compute(*args):
            with scope(args[0]["query"]):
                return function(*args)

        forward, backward = _define_operations(compute, types)

        @torch.compiler.allow_in_graph
        def node(*args):
            if is_portable():
                return compute(*args)
            call = _Call.from_arguments(args)
            if call.has_known_sizes or torch._C._are_functorch_transforms_active():
                return compute(*call.with_known_sizes().arguments())
            if torch.is_grad_enabled() and any(x.requires_grad for x in call.tensors):
                rest = call.numbers, call.others
                return list(_Differentiable.apply(forward, backward, *rest, *call.tensors))
            return forward(*call, [False] * len(call.tensors))

        @functools.wraps(function)
        def run(*args):
            return node(*args) if torch.compiler.is_dynamo_compiling() else function(*args)

        return run

    return decorate


class _Call(NamedTuple):
    """The arguments of a call, in types that an operation of PyTorch can have.

    Args:
        tensors: the tensors.
        numbers: the ints whose values are unknown.
        others: the dicts of arguments and the state of autocast, as JSON. Instead of tensors and
            numbers, it has their indices.
    """

    tensors: list
    numbers: list
    others: str

    @classmethod
    def from_arguments(cls, args):
        tensors, numbers = [], []

        def encode(x):
            for kind, group, types in (
                ("tensor", tensors, torch.Tensor),
                ("number", numbers, torch.SymInt),
            ):
                if isinstance(x, types):
                    group.append(x)
                    return kind, len(group) - 1
            return "value", x

        encoded = [{name: encode(x) for name, x in each.items()} for each in args]
        device = args[0]["query"].device.type
        autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        autocast = autocast if torch.is_autocast_enabled(device) else None
        return cls(tensors, numbers, json.dumps([encoded, autocast], default=_as_json))

    @property
    def has_known_sizes(self):
        """Whether all sizes and numbers have values."""
        return not self.numbers and all(type(size) is int for x in self.tensors for size in x.shape)

    def with_known_sizes(self):
        """Returns the call with ints as sizes, so that the graph is for these sizes only."""
        views = [x.view([int(size) for size in x.shape]) for x in self.tensors]
        tensors = self.tensors if self.has_known_sizes else views
        return self._replace(tensors=tensors, numbers=list(map(int, self.numbers)))

    def arguments(self):
        """Returns the arguments of the function, a list of dicts."""
        values = {"tensor": self.tensors, "number": self.numbers}

        def decode(kind, x):
            return values[kind][x] if kind in values else x

        encoded, _ = json.loads(self.others)
        return [{name: decode(*x) for name, x in each.items()} for each in encoded]

    def run(self, function):
        """Returns the results of a function of the arguments, under autocast as in the graph."""
        args = self.arguments()
        _, autocast = json.loads(self.others)
        dtype = getattr(torch, autocast) if autocast else None
        with torch.autocast(args[0]["query"].device.type, dtype, enabled=bool(autocast)):
            return function(*args)


def _as_json(number):
    """Returns the Python number of a NumPy scalar, or of a dropout rate that is a `SymFloat`."""
    return float(number) if isinstance(number, torch.SymFloat) else number.item()


class _Recorded(NamedTuple):
    """The results of a call, and the tensors whose gradients they have."""

    results: list
    tensors: list

    @classmethod
    def from_call(cls, call, function, needed):
        """Returns the record of a call. `needed` says for each tensor whether it has a gradient."""
        with _recording():
            tensors = [
                x.detach().requires_grad_() if each else x for x, each in zip(call.tensors, needed)
            ]
            results = call._replace(tensors=tensors).run(function)
        return cls(results, [x for x, each in zip(tensors, needed) if each])

    def gradients(self, d_results):
        """Returns the gradients of the tensors. A gradient of a result may be None."""
        pairs = zip(self.results, d_results)
        used = [(x, d) for x, d in pairs if d is not None and x.requires_grad]
        if not used:
            return [torch.zeros_like(x) for x in self.tensors]
        results, d_results = map(list, zip(*used))
        # Callers may retain the graph.
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        return torch.autograd.grad(results, self.tensors, d_results, **options)


@contextlib.contextmanager
def _recording():
    """Returns a context in which PyTorch records operations, also within an operation."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor"):
        excluded = excluded.remove(getattr(torch._C.DispatchKey, key))
    included = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad():
        yield


def _define_operations(function, types):
    """Returns two operations of PyTorch: a function of dicts, and its gradients.

    The first one returns the results. If a tensor needs a gradient, an empty tensor follows, the
    handle: its attribute `record` has the recorded results. If PyTorch copied the handle, the
    attribute is lost, and the second one computes the results again.
    """
    name = f"t2t_relpos::{function.__name__.lstrip('_')}"
    arguments = "Tensor[] tensors, SymInt[] numbers, str others, bool[] needed"

    def forward(tensors, numbers, others, needed):
        call = _Call(tensors, numbers, others)
        if not any(needed):
            with torch.no_grad():
                return [x.contiguous() for x in call.run(function)]
        record = _Recorded.from_call(call, function, needed)
        handle = _new_handle()
        handle.record = record
        # Compiled code may write into the results, whose values the record needs.
        return [
            *(x.detach().clone(memory_format=torch.contiguous_format) for x in record.results),
            handle,
        ]

    def shapes_of_forward(tensors, numbers, others, needed):
        args = _Call(tensors, numbers, others).arguments()
        new_empty = args[0]["query"].new_empty
        results = [new_empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in types(*args)]
        return [*results, _new_handle()] if any(needed) else results

    def backward(tensors, numbers, others, needed, handle, d_results):
        record = getattr(handle, "record", None)
        if record is None:
            record = _Recorded.from_call(_Call(tensors, numbers, others), function, needed)
        return [x.contiguous() for x in record.gradients(d_results)]

    def shapes_of_backward(tensors, numbers, others, needed, handle, d_results):
        return [x.new_empty(x.shape) for x, each in zip(tensors, needed) if each]

    return (
        _define(name, f"({arguments}) -> Tensor[]", forward, shapes_of_forward),
        _define(
            f"{name}_backward",
            f"({arguments}, Tensor handle, Tensor?[] d_results) -> Tensor[]",
            backward,
            shapes_of_backward,
        ),
    )


def _new_handle():
    # On the CPU: CUDA graphs skip such operations, and a replay would not set `record`.
    return torch.empty(0, device="cpu")


def _define(name, schema, function, fake):
    torch.library.define(name, schema)
    torch.library.impl(name, "default", function)
    torch.library.register_fake(name, fake)
    return getattr(torch.ops.t2t_relpos, name.removeprefix("t2t_relpos::")).default


class _Differentiable(torch.autograd.Function):
    """The operations of a function, with its gradients."""

    @staticmethod
    def forward(ctx, forward, backward, numbers, others, *tensors):
        needed = list(ctx.needs_input_grad[4:])
        *results, handle = forward(list(tensors), numbers, others, needed)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, handle)
        ctx.call = backward, numbers, others, needed
        return tuple(results)

    @staticmethod
    def backward(ctx, *d_results):
        backward, numbers, others, needed = ctx.call
        *tensors, handle = ctx.saved_tensors
        gradients = iter(backward(tensors, numbers, others, needed, handle, list(d_results)))
        return None, None, None, None, *(next(gradients) if each else None for each in needed)
