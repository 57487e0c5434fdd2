"""Comparison of a family's attention before and after the exchange, on a small encoder.

It takes the place of bounds on the version of transformers. The user's model is not touched.
"""

import contextlib
import copy
import sys

import torch

from t2t_relpos.integrations.exchange import exchange_classes, find_exchanges
from t2t_relpos.integrations.families import imported

# Several blocks of the algorithms for long sequences, and not a multiple of their sizes.
LENGTH = 301
# Padding on the left of the first sequence, and on the right of the second.
PADDING = 37, 90
# Largest difference by dtype, relative to the largest value of a tensor or to 1.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4}

# Errors by (name of the family, version of transformers). An empty string: equal.
_RESULTS = {}


def compare_family(family):
    """Raises RuntimeError if the exchanged attention of a family gives other numbers.

    The comparison runs once per process and version of transformers.
    """
    version = getattr(sys.modules.get("transformers"), "__version__", None)
    if (family.name, version) not in _RESULTS:
        with _neutral_settings():
            configs = family.small_config()
            difference = ""
            for config in configs if isinstance(configs, list) else [configs]:
                width = _width(family, config)
                encoder = _make_encoder(family, config)
                if encoder is None:
                    return
                difference = difference or _difference(family, encoder, width)
            _RESULTS[family.name, version] = difference
    if difference := _RESULTS[family.name, version]:
        where = f" with transformers {version}" if version else ""
        raise RuntimeError(
            f"Expected that the exchange leaves the results of a small encoder of the family "
            f"{family.name!r}{where} as they are. Received: {difference}. Nothing is exchanged. "
            "For a model of transformers, install a version that this version of t2t_relpos was "
            "tested with. For your own, compare the new `forward` with the old one, and make "
            "`small_config` without dropout. verify=False skips the comparison."
        )


def _width(family, config):
    """Returns the width of the inputs of a small encoder."""
    if isinstance(config, dict):
        width = config.get("hidden_size")
    else:
        width = getattr(config, "hidden_size", None)
    if width is None:
        raise ValueError(
            f"Expected the result of `small_config` of the family {family.name!r} to have "
            f"`hidden_size`, the width of the encoder's inputs. Received: {config!r}."
        )
    return width


@contextlib.contextmanager
def _neutral_settings():
    """Restores the random state, and turns off what a caller may have set for the own model."""
    with (
        torch.random.fork_rng(devices=[]),
        torch.device("cpu"),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
    ):
        torch.manual_seed(0)
        yield


def _make_encoder(family, config):
    """Returns the small encoder, or None where parameters can't have values.

    `init_empty_weights` of accelerate, for example, moves all parameters to the device meta.
    """
    encoder = imported(family.encoder)(config).to(getattr(torch, family.dtype))
    if any(x.device.type != "cpu" for x in encoder.parameters()):
        return None
    for parameter in encoder.parameters():
        # Large enough for weights of attention that are not uniform.
        torch.nn.init.normal_(parameter, std=max(parameter.shape[-1], 4) ** -0.5)
    return encoder


def _difference(family, encoder, width):
    """Returns how the results of both encoders differ, as text that is empty if they don't."""
    other = copy.deepcopy(encoder)
    try:
        count = exchange_classes(find_exchanges(other))
        if not count:
            return "no attention module to exchange"
        for training in (False, True):
            mode = "training" if training else "inference"
            expected, found = (_results(family, x.train(training), width) for x in (encoder, other))
            if found.keys() != expected.keys():
                return f"other parameters with gradients, in {mode}"
            for name, x in expected.items():
                error = (found[name] - x).abs().max() / x.abs().max().clamp(min=1)
                if not error <= TOLERANCES[family.dtype]:
                    return f"{name}, in {mode}, differ by {error.item():.1e} of their largest value"
    except Exception as error:  # Whatever another version raises.
        return f"{type(error).__name__}: {error}"
    return ""


def _results(family, encoder, width):
    """Returns the outputs where there is no padding, and the gradients of all parameters."""
    generator = torch.Generator("cpu").manual_seed(1)
    dtype = getattr(torch, family.dtype)
    x = torch.randn(2, LENGTH, width, generator=generator, dtype=dtype)
    positions = torch.arange(LENGTH)
    padding_mask = torch.stack([positions >= PADDING[0], positions < LENGTH - PADDING[1]])
    outputs = (family.call or torch.nn.Module.__call__)(encoder, x, padding_mask)
    if outputs.shape[1] == LENGTH:
        outputs = outputs[padding_mask]
    weights = torch.randn(outputs.shape, generator=generator, dtype=dtype)
    encoder.zero_grad()
    (outputs * weights).sum().backward()
    gradients = {
        f"gradients of {name}": x.grad
        for name, x in encoder.named_parameters()
        if x.grad is not None
    }
    return {"outputs": outputs.detach(), **gradients}
