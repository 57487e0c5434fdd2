"""Training, dev and test examples from the source code of the Python standard library."""

import collections
import dataclasses
import hashlib
import pathlib
import random
import sysconfig
import warnings

import keras
import numpy as np

from examples.python_trees import graphs

SPLITS = ("train", "dev", "test")
# Ids of names: 0 is padding. Variables follow, then the frequent names of the training set.
UNKNOWN, HOLE_ID, NAMELESS, FIRST_VARIABLE = 1, 2, 3, 4
FIRST_WORD = FIRST_VARIABLE + graphs.MAX_VARIABLES
_EXCLUDED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages"}


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Ids of node kinds and roles, starting at 2, and of names, starting at `FIRST_WORD`."""

    kinds: dict[str, int]
    roles: dict[str, int]
    names: dict[str, int]


def assign_split(module: str) -> str:
    """Returns the split of a module by a hash of its path: 80 % train, 10 % dev, 10 % test.

    Example:

    >>> from examples.python_trees.data import assign_split
    >>> assign_split("json/decoder.py")
    'train'
    """
    digit = int(hashlib.sha256(module.encode()).hexdigest(), 16) % 10
    return {0: "dev", 1: "test"}.get(digit, "train")


def read_examples(
    folder=None, max_nodes=64, max_holes=4, seed=0
) -> dict[str, list[graphs.Example]]:
    """Returns the examples of each split from the Python files in a folder.

    Functions that differ from an earlier one only in the names of the function and of its variables
    are skipped, so the splits share no function.

    Args:
        folder: a folder of Python files. Default: the standard library of the running Python,
            without its tests.
        max_nodes: maximum number of nodes; larger functions are skipped.
        max_holes: maximum number of examples per function, chosen at random.
        seed: seed of the random choices.

    Raises:
        ValueError: if a split is empty.
    """
    folder = pathlib.Path(folder or sysconfig.get_path("stdlib"))
    splits, known = {split: [] for split in SPLITS}, set()
    for path in sorted(folder.rglob("*.py")):
        if _EXCLUDED_FOLDERS & set(path.relative_to(folder).parts):
            continue
        module = path.relative_to(folder).as_posix()
        rng = random.Random(f"{seed} {module}")
        for tree in map(graphs.make_tree, _parse_functions(path)):
            fingerprint = _fingerprint(tree)
            if len(tree.kinds) > max_nodes or fingerprint in known:
                continue
            known.add(fingerprint)
            examples = [graphs.make_example(tree, hole, rng) for hole in tree.uses]
            examples = [example for example in examples if example]
            splits[assign_split(module)] += rng.sample(examples, min(max_holes, len(examples)))
    if not all(splits.values()):
        sizes = {split: len(examples) for split, examples in splits.items()}
        raise ValueError(
            f"All splits must have examples, got {sizes} from {folder}. "
            "Choose a folder with more Python files."
        )
    return splits


def _parse_functions(path):
    with warnings.catch_warnings():
        # Old files contain invalid escape sequences.
        warnings.simplefilter("ignore")
        try:
            return list(graphs.find_functions(path.read_bytes()))
        except (SyntaxError, ValueError):
            # Some files are templates or have another encoding.
            return []


def _fingerprint(tree):
    names = ["" if v >= 0 else name for v, name in zip(tree.variables, tree.names)]
    # The first name is that of the function.
    return tree.kinds, tree.roles, tree.variables, tuple(names[1:])


def make_vocabulary(examples: list[graphs.Example], min_count=5, size=2000) -> Vocabulary:
    """Returns ids of the kinds, roles and names that occur in `min_count` or more examples."""
    return Vocabulary(
        *(
            _number_frequent(
                [getattr(example, field) for example in examples], min_count, size, first
            )
            for field, first in (("kinds", 2), ("roles", 2), ("names", FIRST_WORD))
        )
    )


def _number_frequent(sequences, min_count, size, first):
    counts = collections.Counter()
    for words in sequences:
        counts.update(set(words) - {"", graphs.HOLE})
    words = sorted((-count, word) for word, count in counts.items() if count >= min_count)
    return {word: first + i for i, (_, word) in enumerate(words[:size])}


class Batches(keras.utils.PyDataset):
    """Batches of functions of similar size, padded to the largest function of the batch.

    With a seed, the order and the numbers of the variables change in every epoch, so that a model
    can't learn anything about a particular number.

    Args:
        examples: examples of a split.
        vocabulary: ids of kinds, roles and names.
        batch_size: B.
        edges: whether to include edge labels.
        seed: seed of order and numbers; None for a fixed order.

    Returns:
        For each index, a pair (inputs, answers). The inputs are a dict of int32 "kinds", "roles",
        "names" `[B, T]`, padded with 0, and with `edges` int8 "tree_labels", "name_labels"
        `[B, T, T]`, padded with -1. The answers are int32 `[B]`.
    """

    def __init__(
        self,
        examples,
        vocabulary: Vocabulary,
        batch_size: int,
        *,
        edges=True,
        seed: int | None = None,
    ):
        super().__init__()
        self.edges = edges
        self.examples, self.vocabulary, self.batch_size = examples, vocabulary, batch_size
        self.rng = None if seed is None else np.random.default_rng(seed)
        self.on_epoch_end()

    def on_epoch_end(self):
        sizes = np.array([len(example.kinds) for example in self.examples])
        if self.rng is not None:
            # Functions of slightly different sizes share batches, which differ between epochs.
            sizes += self.rng.integers(0, 8, len(sizes))
        order = np.argsort(sizes, kind="stable")
        self.batches = [
            order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)
        ]
        if self.rng is not None:
            self.batches = [self.batches[i] for i in self.rng.permutation(len(self.batches))]

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        examples = [self.examples[i] for i in self.batches[index]]
        inputs, answers = make_batch(examples, self.vocabulary, edges=self.edges)
        if self.rng is not None:
            answers = permute_variables(inputs["names"], answers, self.rng)
        return inputs, answers


def make_batch(examples: list[graphs.Example], vocabulary: Vocabulary, *, edges=True):
    """Returns the inputs and answers of examples, as described in `Batches`."""
    longest = max(len(example.kinds) for example in examples)
    batch = {
        field: np.zeros((len(examples), longest), np.int32) for field in ("kinds", "roles", "names")
    }
    edge_fields = ("tree_labels", "name_labels") if edges else ()
    for field in edge_fields:
        batch[field] = np.full((len(examples), longest, longest), graphs.NO_EDGE, np.int8)
    names = {graphs.HOLE: HOLE_ID, "": NAMELESS, **vocabulary.names}
    for i, example in enumerate(examples):
        size = len(example.kinds)
        batch["kinds"][i, :size] = [vocabulary.kinds.get(kind, UNKNOWN) for kind in example.kinds]
        batch["roles"][i, :size] = [vocabulary.roles.get(role, UNKNOWN) for role in example.roles]
        batch["names"][i, :size] = [
            FIRST_VARIABLE + variable if variable >= 0 else names.get(name, UNKNOWN)
            for name, variable in zip(example.names, example.variables)
        ]
        for field in edge_fields:
            batch[field][i, :size, :size] = getattr(example, field)
    return batch, np.array([example.answer for example in examples], np.int32)


def permute_variables(names, answers, rng):
    """Renumbers variables at random, in `names` `[B, T]` in place, and returns the new answers."""
    numbers = rng.permuted(
        np.tile(np.arange(graphs.MAX_VARIABLES, dtype=np.int32), (len(names), 1)), axis=1
    )
    examples, nodes = np.nonzero((names >= FIRST_VARIABLE) & (names < FIRST_WORD))
    old = names[examples, nodes] - FIRST_VARIABLE
    names[examples, nodes] = FIRST_VARIABLE + numbers[examples, old]
    return numbers[np.arange(len(answers)), answers]


def baseline_accuracies(examples: list[graphs.Example]) -> dict[str, float]:
    """Returns the accuracies of predictions without learning.

    "chance" draws a variable at random, "nearest before" takes the last mention before the hole,
    and "most frequent" takes the variable with the most mentions.
    """
    chance, nearest, frequent = [], [], []
    for example in examples:
        mentions = [v for v in example.variables if v >= 0]
        before = [v for v in example.variables[: example.hole] if v >= 0]
        chance.append(1 / len(set(mentions)))
        nearest.append((before or mentions)[-1 if before else 0] == example.answer)
        frequent.append(collections.Counter(mentions).most_common(1)[0][0] == example.answer)
    return {
        "chance": float(np.mean(chance)),
        "nearest before": float(np.mean(nearest)),
        "most frequent": float(np.mean(frequent)),
    }
