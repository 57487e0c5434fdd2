"""Exchange of the classes of modules whose attention `attend` computes.

An exchanged module gets a subclass of its class, with the methods that its family defines. The
subclass has no weights of its own, so that only `__class__` changes, and the attribute
`flash_attention` if it is True. Requires PyTorch.
"""

import functools
import inspect
import types

import torch
from torch.distributed.fsdp import FSDPModule

from t2t_relpos.integrations.families import class_name, family_of, is_a, version_error


class _Exchanged:
    """Marks classes of exchanged modules, and pickles these by the class that a program knows."""

    def __reduce_ex__(self, protocol):
        kind = type(self)
        if "_is_exchanged" not in vars(kind):  # A subclass, such as that of `fully_shard`.
            return super().__reduce_ex__(protocol)
        _, _, *state = object.__reduce_ex__(self, protocol)
        return _new_module, (kind.__bases__[-1],), *state


class _ExchangedAttention(_Exchanged):
    """Shows in its text form that `attend` computes the attention of a module."""

    def extra_repr(self):
        return ", ".join(filter(None, [super().extra_repr(), "attention by t2t_relpos"]))


def is_exchanged(module):
    """Returns whether a module is exchanged."""
    return isinstance(module, _Exchanged)


def is_exchanged_attention(module):
    """Returns whether a module is attention that `attend` computes."""
    return isinstance(module, _ExchangedAttention)


def is_attention(module):
    """Returns whether a module is of an attention class of a family, exchanged or not."""
    family, original = family_of(type(module))
    return family is not None and _is_attention_class(family, original)


@functools.cache
def exchanged_class(kind):
    """Returns the class of exchanged modules for a class of a family, or an empty subclass of it.

    Saved models name this module and `_new_module`.
    """
    family, original = family_of(kind)
    if family is None:
        raise ValueError(
            f"Expected a class of a registered family. Received: {class_name(kind)}. Call "
            "`register_family` before a model is loaded."
        )
    methods = family.methods.get(original) or family.methods[class_name(original)]
    marker = _ExchangedAttention if _is_attention_class(family, original) else _Exchanged
    names = "__module__", "__qualname__", "__doc__"
    attributes = {name: getattr(kind, name) for name in names} | {"_is_exchanged": True}
    return type(kind.__name__, (methods, marker, kind), attributes)


def _new_module(kind):
    exchanged = exchanged_class(kind)
    return exchanged.__new__(exchanged)


def _is_attention_class(family, original):
    return original in family.attention or class_name(original) in family.attention


def find_exchanges(model, *, restore=False):
    """Returns pairs of a module and its class after the exchange, or raises ValueError."""
    check_module(model)
    _check_not_compiled(model)
    exchanges = []
    for name, module in _exchangeable(model).items():
        kind = type(module)
        if isinstance(module, FSDPModule):
            raise ValueError(
                f"Expected modules that `fully_shard` has not wrapped. Received: a "
                f"{kind.__name__}. Exchange the attention before `fully_shard`."
            )
        if is_exchanged(module):
            kind = kind.__bases__[-1] if restore else kind
        elif overridden := _overridden(kind):
            if not restore:
                _check_may_stay(name, module, overridden)
            continue
        elif not restore:
            kind = exchanged_class(kind)
        _check_forward(module)
        exchanges.append((module, kind))
    return exchanges


def exchange_classes(exchanges, *, flash_attention=None):
    """Sets the classes of `find_exchanges`. Returns the number of attention modules."""
    attentions = []
    for module, kind in exchanges:
        if type(module) is not kind:
            module.__class__ = kind
            if "_old_forward" in vars(module):
                module._old_forward = types.MethodType(kind.forward, module)
        if is_attention(module):
            attentions.append(module)
            vars(module).pop("flash_attention", None)
            if flash_attention and is_exchanged(module):
                module.flash_attention = True
    return len(attentions)


def families_of(exchanges):
    """Returns the families of the modules, by name."""
    found = [family_of(kind)[0] for _, kind in exchanges]
    return {family.name: family for family in found}


def check_module(model):
    """Raises ValueError unless a model is a module of PyTorch."""
    if isinstance(model, torch.nn.Module):
        return
    received = repr(model) if model is None or isinstance(model, str) else type(model).__name__
    hint = ""
    if isinstance(model, str):
        hint = " Load the model first, by `from_pretrained`."
    elif isinstance(getattr(model, "model", None), torch.nn.Module):
        hint = " Pass its attribute `model`."
    raise ValueError(f"Expected a `torch.nn.Module`. Received: {received}.{hint}")


def _check_not_compiled(model):
    """Raises ValueError if torch.compile has wrapped a module, which may keep the old attention."""
    for module in model.modules():
        if isinstance(module, torch._dynamo.OptimizedModule) or module._compiled_call_impl:
            raise ValueError(
                "Expected a model that is not compiled. Received: a "
                f"{type(getattr(module, '_orig_mod', module)).__name__} that torch.compile has "
                "compiled. Exchange the attention before `torch.compile` or `Module.compile`."
            )


def _exchangeable(model):
    """Returns the modules whose classes are exchanged, by name, as they are."""
    found, insides = {}, {}
    for name, module in model.named_modules():
        family, original = family_of(type(module))
        if family is None or version_error(family) or not _has_relative_attention(module, family):
            continue
        if family.inside is None:
            found[name] = module
        elif is_a(original, family.inside):
            insides |= dict.fromkeys(module.modules())
        if module in insides:
            found[name] = module
    return found


def _has_relative_attention(module, family):
    """Returns whether all attention modules of a family in a module have relative positions."""
    return family.has_tables is None or all(
        family.has_tables(x)
        for x in module.modules()
        if is_attention(x) and family_of(type(x))[0] is family
    )


def _overridden(kind):
    """Returns the methods of a class of a family that a subclass has its own of."""
    original = family_of(kind)[1]
    names = {
        name
        for base in kind.__mro__[: kind.__mro__.index(original)]
        for name, value in vars(base).items()
        # Classes of layers wrap `forward` of each subclass.
        if callable(value) and inspect.unwrap(value) is not _method(original, name)
    }
    return sorted(names & {"__call__", *vars(original)} - {"__init__"})


def _method(kind, name):
    return inspect.unwrap(getattr(kind, name, None))


def _check_may_stay(name, module, overridden):
    """Raises ValueError if a module with methods of its own can't stay beside exchanged ones.

    Encoders and layers can: they hand masks of pairs on.
    """
    family, original = family_of(type(module))
    if original not in family.optional and class_name(original) not in family.optional:
        raise ValueError(
            f"Expected modules with the methods of transformers. Received: {name or 'a module'}, a "
            f"{type(module).__name__}, which is a {original.__name__} with methods of its own: "
            f"{', '.join(overridden)}. Nothing is exchanged. Use the class of transformers, or "
            "call `t2t_relpos.attention.attend` in your method."
        )


def _check_forward(module):
    """Raises ValueError if a `forward` of the instance would hide that of a new class.

    accelerate's hooks are such a `forward`. They call `_old_forward`, which is exchanged.
    """
    forward = vars(module).get("_old_forward", vars(module).get("forward"))
    if forward is not None and getattr(forward, "__func__", None) is not type(module).forward:
        raise ValueError(
            f"Expected modules without a `forward` of their own. Received: a "
            f"{type(module).__name__} whose `forward` is {forward!r}. It would hide the exchanged "
            "attention. Exchange the attention first."
        )


def attention_names(model):
    """Returns a description of the attention modules of a model, for an error."""
    names = {}
    for module in model.modules():
        name = type(module).__name__
        if "Attention" in name:
            kind = getattr(module, "position_embeddings_type", None)
            description = name if kind is None else f"{name} with position embeddings {kind!r}"
            names[description] = names.get(description, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in names.items()) or "no attention module"
