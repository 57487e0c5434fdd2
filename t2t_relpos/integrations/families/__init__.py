"""Families of models whose relative attention is exchanged, one file each.

A family is the classes of transformers that share one relative attention. Its file has a `Family`
and classes with the new methods, which are computed by `attend`. Classes of transformers are found
by name, so that no file imports transformers before a function runs. The files require PyTorch.
"""

import dataclasses
import functools
import importlib
import sys
from collections.abc import Callable

# Files of this package. Each has a list `FAMILIES`.
BUILT_IN = (
    *("wav2vec2_bert", "wav2vec2_conformer", "seamless_m4t", "seamless_m4t_v2", "parakeet"),
    *("fastspeech2_conformer", "speecht5", "vits", "granite_speech", "inkling"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Classes that share one relative attention, and the methods that exchanged modules have.

    Experimental: fields may change in a minor version. The keys of `attention`, `required` and
    `optional` are classes, or their full names, such as
    "transformers.models.vits.modeling_vits.VitsAttention". The values are classes that define the
    methods of exchanged modules, `forward` first of all. A module gets a subclass of both, so that
    `super()` is the class of the key. No class is changed in place. See `register_family` for an
    example.

    Args:
        name: unique name, for errors and `list_families`.
        attention: classes of attention modules.
        encoder: the class, or its full name, of the encoder that is compared. It is called with
            the result of `small_config`.
        small_config: function that returns the configuration of a small encoder: two layers, and no
            dropout. It is an object or a dict, with `hidden_size`, the width of the inputs. For a
            list of configurations, an encoder of each is compared.
        call: function `(encoder, x, padding_mask)` that returns the outputs of the encoder, for
            inputs `[2, T, hidden_size]` and a bool mask `[2, T]`, True = no padding. Outputs are
            compared where the mask is True. Default: `encoder(x, padding_mask)`.
        required: other classes without which the attention does not work. Default: none.
        optional: encoders and layers that hand masks on. A subclass with methods of its own stays.
            Default: none.
        inside: a class, or its full name. Only modules inside of it are exchanged. Default: all.
        has_tables: function that returns whether an attention module has relative positions.
            Default: all have.
        condition: the setting that `has_tables` requires, for an error. Default: none.
        dtype: "float64", or "float32" for models that can't compute in float64: the dtype of the
            comparison, whose tolerance depends on it. Default: "float64".
        since: the oldest version of transformers that is supported, such as "5.24". Default: any.
    """

    name: str
    attention: dict
    encoder: str | type
    small_config: Callable
    call: Callable | None = None
    required: dict = dataclasses.field(default_factory=dict)
    optional: dict = dataclasses.field(default_factory=dict)
    inside: str | type | None = None
    has_tables: Callable | None = None
    condition: str = ""
    dtype: str = "float64"
    since: str = ""

    @property
    def methods(self) -> dict:
        """All classes of the family, and the classes that define their new methods."""
        return self.attention | self.required | self.optional


# By name, and by each class or full name of a class.
_FAMILIES, _BY_CLASS = {}, {}


def register_family(family):
    """Adds a family of models to those that `replace_attention` exchanges.

    Experimental: it may change in a minor version. The families of this library are registered in
    the same way. `replace_attention` compares a small encoder before and after the exchange, when
    a model of the family is first exchanged.

    Args:
        family: a `Family`.

    Raises:
        ValueError: if the family has no name or no attention classes, or one of its names or
            classes is registered already.
        ImportError: if Keras has another backend than PyTorch.

    Example:
    >>> from t2t_relpos.integrations.transformers import Family, register_family
    >>> def register_mine(attention_class, new_methods, encoder_class, small_config):
    ...     family = Family(
    ...         name="my conformer",
    ...         attention={attention_class: new_methods},
    ...         encoder=encoder_class,
    ...         small_config=small_config,
    ...     )
    ...     register_family(family)
    """
    _register_built_in()
    _register(family)


def _register(family):
    if not isinstance(family, Family):
        raise ValueError(f"Expected a `Family`. Received: {family!r}.")
    if not isinstance(family.name, str) or not family.name.strip():
        raise ValueError(
            f"Expected a family with a name, a string that is not empty. Received: {family.name!r}."
        )
    if not family.attention:
        raise ValueError(
            f"Expected classes of attention modules in `attention` of the family {family.name!r}. "
            "Received: none."
        )
    if family.name in _FAMILIES:
        raise ValueError(
            f"Expected a family whose name is not registered. Received: {family.name!r}, which is. "
            "Register a family once per process, and choose a name that no other has."
        )
    for kind in family.methods:
        if other := _BY_CLASS.get(kind) or _BY_CLASS.get(class_name(kind)):
            raise ValueError(
                f"Expected classes that are in no other family. Received: {class_name(kind)} in "
                f"{family.name!r}, which is in {other.name!r}, too."
            )
    _FAMILIES[family.name] = family
    _BY_CLASS.update(dict.fromkeys(family.methods, family))


def registered_families():
    """Returns all families by name, those of this library first."""
    _register_built_in()
    return dict(_FAMILIES)


@functools.cache
def _register_built_in():
    # Refuses other backends of Keras.
    import t2t_relpos.integrations.torch  # noqa: F401

    for name in BUILT_IN:
        for family in importlib.import_module(f"{__name__}.{name}").FAMILIES:
            _register(family)


def class_name(kind):
    """Returns the full name of a class, or of a class that is given by its full name."""
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


def imported(kind):
    """Returns a class that is given as such, or by its full name."""
    if not isinstance(kind, str):
        return kind
    module, _, name = kind.rpartition(".")
    return getattr(importlib.import_module(module), name)


def version_error(family):
    """Returns why a version of transformers is not supported, or an empty string."""
    if not family.since:
        return ""
    version = sys.modules["transformers"].__version__
    numbers = [tuple(map(int, x.split(".")[:2])) for x in (version, family.since)]
    if numbers[0] >= numbers[1]:
        return ""
    return f"Expected transformers {family.since} or newer. Received: {version}."


def import_error(family):
    """Returns why a family can't be exchanged, or an empty string.

    Its classes can't be imported, or are older than the family supports.
    """
    for kind in (*family.methods, family.encoder):
        try:
            imported(kind)
        except (ImportError, AttributeError) as error:
            return f"{type(error).__name__}: {error}"
    return version_error(family)


def is_a(kind, other):
    """Returns whether a class is another, or a subclass of it. `other` may be a full name."""
    return any(base is other or class_name(base) == other for base in kind.__mro__)


def family_of(kind):
    """Returns (family, its class that `kind` is or is a subclass of), or (None, None)."""
    _register_built_in()
    for base in kind.__mro__:
        if family := _BY_CLASS.get(base) or _BY_CLASS.get(class_name(base)):
            return family, base
    return None, None
