"""Pairs of entries and changes that do not exist, with the reasons."""

import fnmatch

MODULES = ("module", "from_multihead_attention")
FAMILIES = ("w2v-BERT", "SeamlessM4T*", "SpeechT5", "VITS", "Granite Speech 5")
# (names of entries, names of changes, why); names are patterns of `fnmatch`.
EXCLUSIONS = [
    ((*MODULES, *FAMILIES), ("array, *", "list of *"), "Modules of PyTorch take tensors only."),
    (
        (*MODULES, *FAMILIES),
        ("float64 *",),
        "The inputs of a PyTorch module have the dtype of its parameters.",
    ),
    (MODULES, ("*int* masks",), "As PyTorch's, it takes bool or float masks: a clear error."),
    (("VITS",), ("uint8 ids", "int16 ids"), "PyTorch's Embedding takes int32 and int64."),
    (
        ("attend*", "row *"),
        ("float64 inputs",),
        "Queries of float64 ask for outputs of float64, and other tensors are cast to their dtype.",
    ),
    (("layer *",), ("list of *",), "Keras's layers take tensors or arrays. Masks: a clear error."),
    (("Transformer", "CausalLM"), ("list of *",), "Keras's models take tensors or arrays."),
    (("attend, offsets",), ("list of ids",), "An error says that offsets are an int or a tensor."),
    (("layer position_embedding",), ("single batch entries",), "Its outputs have no batch axis."),
    (
        (
            *("attend", "attend, offsets", "layer relative_without_tables"),
            *("layer relative_large_k", "layer relative_positions"),
        ),
        ("padding*",),
        "There is no key mask.",
    ),
    (
        ("attend, window", "attend, linear memory", "layer relative_window"),
        ("padding on the left",),
        "Keys on the left are not masked by causality.",
    ),
    (
        ("layer sinusoids", "layer learned_positions"),
        ("padding on the left",),
        "Positions are absolute.",
    ),
    (("SpeechT5",), ("padding*",), "Its convolutions read several samples for a position."),
    (
        ("layer local",),
        ("padding on the left",),
        "As in tensor2tensor, the value table has no effect on queries of the first block.",
    ),
    (
        ("Transformer", "Transformer.score", "CausalLM*"),
        ("padding on the left",),
        "As in tensor2tensor, the decoder masks no padding. `generate` raises an error.",
    ),
    (("SeamlessM4T*",), ("padding*",), "Outputs have half of the positions of the inputs."),
    (
        (
            *("layer position_embedding", "layer sinusoids", "layer learned_positions"),
            *("layer tokens", "layer feed_forward", "layer residual"),
        ),
        ("permuted heads",),
        "It has no heads.",
    ),
    (("layer relative",), ("PEFT",), "PEFT adapts `torch.nn.Linear`, and Keras has `enable_lora`."),
    (
        ("from_multihead_attention",),
        ("torch.compile*", "vmap"),
        "It makes a module, as no call of a model does.",
    ),
    (("w2v-BERT",), ("vmap",), "transformers reads the values of the padding mask."),
]


def reason(entry, change):
    """Returns why a pair does not exist, or None."""
    for entries, changes, why in EXCLUSIONS:
        if any(fnmatch.fnmatchcase(entry.name, x) for x in entries) and any(
            fnmatch.fnmatchcase(change.name, x) for x in changes
        ):
            return why
    return None
