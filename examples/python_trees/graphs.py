"""Converts Python functions to graphs: nodes of the syntax tree with labeled edges.

The task: one use of a local variable is replaced by a hole, and a model predicts the variable.
Local variables have random numbers instead of names, so a model can only use their context.

Reference: Allamanis et al. 2018, "Learning to represent programs with graphs".
"""

import ast
import dataclasses
import random

import numpy as np

MAX_VARIABLES = 12
HOLE = "<hole>"

# A tree edge goes at most this many steps up and this many steps down.
MAX_STEPS = 3
# One label per ancestor and descendant distance, and two (before, after) per other pair.
NUM_TREE_LABELS = 2 * MAX_STEPS + 1 + 2 * MAX_STEPS**2
NAME_LABELS = (
    "last use",
    "next use",
    "earlier use",
    "later use",
    "variable before",
    "variable after",
)
NO_EDGE = -1

_SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ClassDef,
    ast.Global,
    ast.Nonlocal,
)
# Nodes that are merged into the kind of their parent.
_FOLDED = (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)
_NAME_FIELDS = {
    ast.Name: "id", ast.arg: "arg", ast.ExceptHandler: "name",
    ast.Attribute: "attr", ast.keyword: "arg", ast.alias: "name",
}  # fmt: skip
_VARIABLES = (ast.Name, ast.arg, ast.ExceptHandler)


@dataclasses.dataclass(frozen=True)
class Tree:
    """The n nodes of a function in source order.

    Args:
        kinds: class of each node with its operator or context, such as "BinOp/Add".
        roles: field of the parent that contains the node, such as "left".
        names: identifier of each node, or "".
        parents: index of the parent; -1 for the function.
        variables: number of the local variable that the node names; -1 for other nodes.
        uses: indices of the nodes that read a variable.
    """

    kinds: tuple[str, ...]
    roles: tuple[str, ...]
    names: tuple[str, ...]
    parents: tuple[int, ...]
    variables: tuple[int, ...]
    uses: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Example:
    """A function with a hole.

    Args:
        kinds, roles: as in `Tree`.
        names: as in `Tree`; `HOLE` at the hole and "" for local variables.
        variables: random numbers of the variables; -1 for other nodes and the hole.
        tree_labels: int8 `[n, n]`, from `label_tree_edges`.
        name_labels: int8 `[n, n]`, from `label_name_edges`.
        hole: index of the hole.
        answer: number of the variable to predict.
    """

    kinds: tuple[str, ...]
    roles: tuple[str, ...]
    names: tuple[str, ...]
    variables: tuple[int, ...]
    tree_labels: np.ndarray
    name_labels: np.ndarray
    hole: int
    answer: int


def find_functions(source: str | bytes):
    """Yields the functions of a module that contain no nested scope, as nodes of `ast`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if not any(isinstance(inner, _SCOPES) for inner in ast.walk(node) if inner is not node):
                yield node


def make_tree(function: ast.AST) -> Tree:
    """Returns the tree of a function, without its docstring and decorators."""
    kinds, roles, parents, nodes = zip(*_visit(function, "", -1, []))
    numbers = {}
    for node in nodes:
        if _binds(node) and _name(node) not in ("self", "cls", "_"):
            numbers.setdefault(_name(node), len(numbers))
    names = tuple(map(_name, nodes))
    variables = tuple(
        numbers.get(name, -1) if isinstance(node, _VARIABLES) else -1
        for name, node in zip(names, nodes)
    )
    uses = tuple(
        i
        for i, node in enumerate(nodes)
        if variables[i] >= 0 and isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )
    return Tree(kinds, roles, names, parents, variables, uses)


def _visit(node, role, parent, rows):
    """Appends (kind, role, parent, node) of a subtree to `rows` in source order."""
    folded = [child for child in ast.iter_child_nodes(node) if isinstance(child, _FOLDED)]
    kind = "/".join(type(part).__name__ for part in (node, *folded))
    if isinstance(node, ast.Constant):
        kind += "/" + type(node.value).__name__
    index = len(rows)
    rows.append((kind, role, parent, node))
    for field, child in _children(node):
        _visit(child, field, index, rows)
    return rows


def _children(node):
    for field, value in ast.iter_fields(node):
        if field == "decorator_list":
            continue
        for i, child in enumerate(value if isinstance(value, list) else [value]):
            is_docstring = (
                field == "body" and i == 0 and isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
            )  # fmt: skip
            if isinstance(child, ast.AST) and not isinstance(child, _FOLDED) and not is_docstring:
                yield field, child


def _name(node):
    if isinstance(node, ast.Constant):
        return repr(node.value) if len(repr(node.value)) <= 12 else ""
    field = _NAME_FIELDS.get(type(node))
    return (field and getattr(node, field)) or ""


def _binds(node):
    return isinstance(node, (ast.arg, ast.ExceptHandler)) or (
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )


def label_tree_edges(parents) -> np.ndarray:
    """Returns the labels of the paths between nodes in the tree, int8 `[n, n]`.

    The path from node `i` to node `j` goes `up` to their lowest common ancestor and then `down`.
    (0, 0) is the node itself, (1, 0) its parent, (0, 1) a child, (1, 1) a sibling, and (2, 1) a
    sibling of the parent. If both numbers are positive, nodes before and after `i` have different
    labels. Paths of more than `MAX_STEPS` steps up or down have no edge.

    Args:
        parents: index of each node's parent; -1 for the root.

    Example:

    >>> from examples.python_trees.graphs import label_path, label_tree_edges
    >>> paths = (1, 0), (0, 0), (1, 1, True), (1, 2, True)
    >>> label_tree_edges((-1, 0, 0, 2))[1].tolist() == [label_path(*path) for path in paths]
    True
    """
    size = len(parents)
    # ancestors[i, j]: whether j is i or an ancestor of i.
    ancestors = np.eye(size, dtype=np.int32)
    for node, parent in enumerate(parents):
        if parent >= 0:
            ancestors[node] += ancestors[parent]
    depth = ancestors.sum(1)
    shared = ancestors @ ancestors.T
    up, down = depth[:, None] - shared, depth[None, :] - shared
    after = np.arange(size)[None, :] > np.arange(size)[:, None]
    labels = label_path(up, down, after)
    return np.where(np.maximum(up, down) > MAX_STEPS, NO_EDGE, labels).astype(np.int8)


def label_path(up, down, after=0):
    """Returns the label of a path of at most `MAX_STEPS` steps each way; takes arrays or ints."""
    sideways = 2 * MAX_STEPS + 1 + 2 * (MAX_STEPS * (up - 1) + down - 1) + after
    return np.where((up > 0) & (down > 0), sideways, np.where(up > 0, MAX_STEPS + up, down))


def label_name_edges(variables, hole) -> np.ndarray:
    """Returns the labels of edges between mentions of variables, int8 `[n, n]`.

    A mention has edges to the last, next, earlier and later mentions of the same variable, and to
    the mentions of any variable directly before and after it. The hole mentions no variable.

    Args:
        variables: number of each node's variable; -1 for other nodes.
        hole: index of the hole.

    Returns:
        Indices into `NAME_LABELS`, or `NO_EDGE`.
    """
    labels = np.full((len(variables), len(variables)), NO_EDGE, np.int8)
    mentions = [i for i, variable in enumerate(variables) if variable >= 0 or i == hole]
    for before, after in zip(mentions, mentions[1:]):
        labels[after, before] = NAME_LABELS.index("variable before")
        labels[before, after] = NAME_LABELS.index("variable after")
    for variable in set(variables) - {-1}:
        same = [i for i in mentions if variables[i] == variable]
        for a, first in enumerate(same):
            for b, second in enumerate(same[a + 1 :]):
                is_adjacent = b == 0
                backward = "last use" if is_adjacent else "earlier use"
                forward = "next use" if is_adjacent else "later use"
                labels[second, first] = NAME_LABELS.index(backward)
                labels[first, second] = NAME_LABELS.index(forward)
    return labels


def make_example(tree: Tree, hole: int, rng: random.Random) -> Example | None:
    """Replaces one of the tree's `uses` by a hole.

    All features are computed after the variable is removed. Variables get random numbers below
    `MAX_VARIABLES`.

    Returns:
        The example, or None if the answer is not mentioned elsewhere, no other variable remains,
        or there are more than `MAX_VARIABLES` variables.
    """
    variables = list(tree.variables)
    answer, variables[hole] = variables[hole], -1
    present = sorted(set(variables) - {-1})
    if answer not in present or not 2 <= len(present) <= MAX_VARIABLES:
        return None
    numbers = dict(zip(present, rng.sample(range(MAX_VARIABLES), len(present))))
    variables = tuple(numbers.get(variable, -1) for variable in variables)
    names = ["" if old >= 0 else name for old, name in zip(tree.variables, tree.names)]
    names[hole] = HOLE
    return Example(
        tree.kinds,
        tree.roles,
        tuple(names),
        variables,
        label_tree_edges(tree.parents),
        label_name_edges(variables, hole),
        hole,
        numbers[answer],
    )
