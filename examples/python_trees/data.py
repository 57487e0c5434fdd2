"""The standard library's own source as training, dev and test examples, split by module file."""

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
# Ids of names: padding, unknown, the hole, no name, then variables, then what training modules use often.
UNKNOWN, HOLE_ID, NAMELESS, FIRST_VARIABLE = 1, 2, 3, 4
FIRST_WORD = FIRST_VARIABLE + graphs.MAX_VARIABLES
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages"}


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Ids of what a node can be. Those of kinds and roles start at 2, of names at `FIRST_WORD`."""

    kinds: dict[str, int]
    roles: dict[str, int]
    names: dict[str, int]


def split_of(module: str) -> str:
    """Which split a module file belongs to, by a hash of its path: a tenth each for dev and test.

    Example:

    >>> split_of("json/decoder.py")
    'train'
    """
    digit = int(hashlib.sha256(module.encode()).hexdigest(), 16) % 10
    return {0: "dev", 1: "test"}.get(digit, "train")


def read_examples(
    folder=None, max_nodes=64, max_holes=4, seed=0
) -> dict[str, list[graphs.Example]]:
    """Examples of every split from the Python files under a folder.

    A function that reads like one seen before, but for its variables' names,
    is left out, so that no test example is a copy of a training one.

    Args:
        folder: default the standard library of the running Python, without its tests.
        max_nodes: functions with more nodes are left out.
        max_holes: of a function with more uses of variables, so many are drawn.
        seed: of the draws.
    """
    folder = pathlib.Path(folder or sysconfig.get_path("stdlib"))
    splits, seen = {split: [] for split in SPLITS}, set()
    for path in sorted(folder.rglob("*.py")):
        module = path.relative_to(folder).as_posix()
        if _LEFT_OUT & set(path.relative_to(folder).parts):
            continue
        rng = random.Random(f"{seed} {module}")
        for function in _functions(path):
            tree = graphs.tree_of(function)
            # The first name is the function's own.
            looks = (tree.kinds, tree.roles, tree.variables, _outside(tree)[1:])
            if len(tree.kinds) > max_nodes or looks in seen:
                continue
            seen.add(looks)
            examples = [graphs.make_example(tree, hole, rng) for hole in tree.uses]
            examples = [example for example in examples if example]
            splits[split_of(module)] += rng.sample(examples, min(max_holes, len(examples)))
    if not all(splits.values()):
        sizes = {split: len(examples) for split, examples in splits.items()}
        raise ValueError(
            f"Expected Python files for all of {SPLITS} under {folder}. Received: {sizes} examples. "
            "Give a folder with more modules."
        )
    return splits


def _functions(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of old escapes in strings
        try:
            return list(graphs.functions(path.read_bytes()))
        except (SyntaxError, ValueError):  # some files are templates, or in another encoding
            return []


def _outside(tree):
    return tuple("" if v >= 0 else name for v, name in zip(tree.variables, tree.names))


def make_vocabulary(examples: list[graphs.Example], min_count=5, size=2000) -> Vocabulary:
    """Ids of the kinds, roles and names that stand in at least `min_count` examples."""

    def frequent(field, first):
        counts = collections.Counter()
        for example in examples:
            counts.update(set(getattr(example, field)) - {"", graphs.HOLE})
        words = sorted((-count, word) for word, count in counts.items() if count >= min_count)
        return {word: first + i for i, (_, word) in enumerate(words[:size])}

    return Vocabulary(frequent("kinds", 2), frequent("roles", 2), frequent("names", FIRST_WORD))


class Batches(keras.utils.PyDataset):
    """Batches of functions of like size, each padded to its largest.

    With a seed, every epoch has another order and other numbers for variables,
    so that no number comes to mean anything.

    Args:
        examples: all of a split.
        vocabulary: gives the ids.
        batch_size: B.
        edges: whether labels of edges come along.
        seed: of order and numbers; None keeps both.

    Returns:
        by index a dict of int32 `"kinds"`, `"roles"`, `"names"` `[B, T]`, 0 for
        padding, with `edges` int8 `"tree_labels"`, `"name_labels"` `[B, T, T]`, -1 for
        padding; and answers, int32 `[B]`.
    """

    def __init__(
        self, examples, vocabulary: Vocabulary, batch_size: int, edges=True, seed: int | None = None
    ):
        super().__init__()
        self.edges = edges
        self.examples, self.vocabulary, self.batch_size = examples, vocabulary, batch_size
        self.rng = None if seed is None else np.random.default_rng(seed)
        self.on_epoch_end()

    def on_epoch_end(self):
        sizes = np.array([len(example.kinds) for example in self.examples])
        shuffle = self.rng is not None
        # Sizes up to 7 apart share batches, so that these are not the same every epoch.
        order = np.argsort(
            sizes + (self.rng.integers(0, 8, len(sizes)) if shuffle else 0), kind="stable"
        )
        batches = [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        self.batches = (
            [batches[i] for i in self.rng.permutation(len(batches))] if shuffle else batches
        )

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        examples = [self.examples[i] for i in self.batches[index]]
        inputs, answers = make_batch(examples, self.vocabulary, self.edges)
        if self.rng is not None:
            answers = renumber(inputs["names"], answers, self.rng)
        return inputs, answers


def make_batch(examples: list[graphs.Example], vocabulary: Vocabulary, edges=True):
    """See `Batches`."""
    longest = max(len(example.kinds) for example in examples)
    batch = {
        field: np.zeros((len(examples), longest), np.int32) for field in ("kinds", "roles", "names")
    }
    edge_fields = ("tree_labels", "name_labels") if edges else ()
    for field in edge_fields:
        batch[field] = np.full((len(examples), longest, longest), graphs.NO_EDGE, np.int8)
    names = {graphs.HOLE: HOLE_ID, "": NAMELESS, **vocabulary.names}
    for row, example in enumerate(examples):
        size = len(example.kinds)
        batch["kinds"][row, :size] = [vocabulary.kinds.get(kind, UNKNOWN) for kind in example.kinds]
        batch["roles"][row, :size] = [vocabulary.roles.get(role, UNKNOWN) for role in example.roles]
        batch["names"][row, :size] = [
            FIRST_VARIABLE + variable if variable >= 0 else names.get(name, UNKNOWN)
            for name, variable in zip(example.names, example.variables)
        ]
        for field in edge_fields:
            batch[field][row, :size, :size] = getattr(example, field)
    return batch, np.array([example.answer for example in examples], np.int32)


def renumber(names, answers, rng):
    """Draws new numbers for variables: changes `names` `[B, T]` in place, returns new answers `[B]`."""
    numbers = rng.permuted(
        np.tile(np.arange(graphs.MAX_VARIABLES, dtype=np.int32), (len(names), 1)), axis=1
    )
    rows, nodes = np.nonzero((names >= FIRST_VARIABLE) & (names < FIRST_WORD))
    names[rows, nodes] = FIRST_VARIABLE + numbers[rows, names[rows, nodes] - FIRST_VARIABLE]
    return numbers[np.arange(len(answers)), answers]


def guesses(examples: list[graphs.Example]) -> dict[str, float]:
    """Accuracies of what needs no learning: chance, the nearest mention before the hole, the most frequent."""
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
