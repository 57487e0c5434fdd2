"""Functions of Python as graphs: nodes of the syntax tree, a hole, and labels of the edges between them.

A use of a local variable is taken out of a function; what is asked for is the
variable that stood there. Local variables have arbitrary numbers instead of
names, so only how they are used tells them apart.
"""

import ast
import dataclasses
import random

import numpy as np

MAX_VARIABLES = 12
HOLE = "<hole>"

# Steps up from a node to the smallest subtree that holds both, and down to the other: at most so many.
MAX_STEPS = 3
# One label for every pair of nodes on a line to the root, two (before, after) for pairs side by side.
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
# No nodes of their own: they become part of their parent's kind.
_FOLDED = (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)
_NAME_FIELDS = {
    ast.Name: "id", ast.arg: "arg", ast.ExceptHandler: "name",
    ast.Attribute: "attr", ast.keyword: "arg", ast.alias: "name",
}  # fmt: skip
_VARIABLES = (ast.Name, ast.arg, ast.ExceptHandler)


@dataclasses.dataclass(frozen=True)
class Tree:
    """The nodes of a function in the order of the source, n of them.

    Args:
        kinds: the class of each node, with its operator or context: "BinOp/Add".
        roles: the field of the parent that holds it: "left".
        names: the identifier of each node or "".
        parents: index of the parent, -1 for the function.
        variables: number of the local variable that it names, -1 if none.
        uses: the nodes at which a variable is read.
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
        variables: numbers of variables, drawn anew, -1 for other nodes and the hole.
        tree_labels: int8 `[n, n]`, see `tree_labels`.
        name_labels: int8 `[n, n]`, see `name_labels`.
        hole: index of the node taken out.
        answer: number of the variable that stood there.
    """

    kinds: tuple[str, ...]
    roles: tuple[str, ...]
    names: tuple[str, ...]
    variables: tuple[int, ...]
    tree_labels: np.ndarray
    name_labels: np.ndarray
    hole: int
    answer: int


def functions(source: str | bytes):
    """The functions of a module that hold no further scope, as nodes of `ast`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if not any(isinstance(inner, _SCOPES) for inner in ast.walk(node) if inner is not node):
                yield node


def tree_of(function: ast.AST) -> Tree:
    """The tree of a function, without its docstring and decorators."""
    rows = []

    def visit(node, role, parent):
        kind = "/".join(
            [type(node).__name__]
            + [
                type(child).__name__
                for child in ast.iter_child_nodes(node)
                if isinstance(child, _FOLDED)
            ]
        )
        if isinstance(node, ast.Constant):
            kind += "/" + type(node.value).__name__
        index = len(rows)
        rows.append((kind, role, _name(node), parent, node))
        for field, child in _children(node):
            visit(child, field, index)

    visit(function, "", -1)
    kinds, roles, names, parents, nodes = zip(*rows)
    numbers = {}
    for node in nodes:
        if _binds(node) and _name(node) not in ("self", "cls", "_"):
            numbers.setdefault(_name(node), len(numbers))
    variables = [
        numbers.get(name, -1) if isinstance(node, _VARIABLES) else -1
        for name, node in zip(names, nodes)
    ]
    uses = [
        i
        for i, node in enumerate(nodes)
        if variables[i] >= 0 and isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    ]
    return Tree(kinds, roles, names, parents, tuple(variables), tuple(uses))


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


def tree_labels(parents) -> np.ndarray:
    """Where node `j` stands seen from node `i`, int8 `[n, n]`.

    From `i` one goes `up` steps to the smallest subtree that holds both, then
    `down` steps to `j`: (0, 0) is the node itself, (1, 0) its parent, (0, 1) a
    child, (1, 1) a sibling, (2, 1) a parent's sibling. Every such pair has a
    label, siblings and their like one before and one after `i`; more than
    `MAX_STEPS` up or down is no edge.

    Example:

    >>> tree_labels((-1, 0, 0, 2))[1].tolist() == [
    ...     tree_label(1, 0), tree_label(0, 0), tree_label(1, 1, after=True), tree_label(1, 2, after=True)]
    True
    """
    size = len(parents)
    above = np.eye(size, dtype=np.int32)  # above[i, j]: j is i or an ancestor of i
    for node, parent in enumerate(parents):
        if parent >= 0:
            above[node] += above[parent]
    depth = above.sum(1)
    shared = above @ above.T
    up, down = depth[:, None] - shared, depth[None, :] - shared
    after = np.arange(size)[None, :] > np.arange(size)[:, None]
    labels = tree_label(up, down, after)
    return np.where(np.maximum(up, down) > MAX_STEPS, NO_EDGE, labels).astype(np.int8)


def tree_label(up, down, after=False):
    """The label of `up` and `down` steps, both at most `MAX_STEPS`; arrays or ints."""
    side_by_side = 2 * MAX_STEPS + 1 + 2 * (MAX_STEPS * (up - 1) + down - 1) + after
    return np.where((up > 0) & (down > 0), side_by_side, np.where(up > 0, MAX_STEPS + up, down))


def name_labels(variables, hole) -> np.ndarray:
    """How the mentions of variables follow each other, int8 `[n, n]`: indices of `NAME_LABELS`.

    A mention `i` has edges to the last, next, earlier and later mentions of
    the same variable, and to the mentions just before and after it of any
    other. The hole is a mention of no variable.
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
                near = b == 0
                labels[second, first] = NAME_LABELS.index("last use" if near else "earlier use")
                labels[first, second] = NAME_LABELS.index("next use" if near else "later use")
    return labels


def make_example(tree: Tree, hole: int, rng: random.Random) -> Example | None:
    """The tree with a hole at one of its `uses`; None if nothing is left to choose.

    Numbers of variables are drawn from `MAX_VARIABLES`. All that is made here
    is made of the tree with the variable at the hole already gone.
    """
    variables = list(tree.variables)
    answer, variables[hole] = variables[hole], -1
    present = sorted(set(variables) - {-1})
    if answer not in present or not 2 <= len(present) <= MAX_VARIABLES:
        return None
    drawn = dict(zip(present, rng.sample(range(MAX_VARIABLES), len(present))))
    variables = tuple(drawn.get(variable, -1) for variable in variables)
    names = ["" if old >= 0 else name for old, name in zip(tree.variables, tree.names)]
    names[hole] = HOLE
    return Example(
        tree.kinds,
        tree.roles,
        tuple(names),
        variables,
        tree_labels(tree.parents),
        name_labels(variables, hole),
        hole,
        drawn[answer],
    )
