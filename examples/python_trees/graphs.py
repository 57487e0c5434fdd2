"""Converts Python functions to graphs: nodes of the syntax tree with labeled edges.

The task: one use of a local variable is replaced by a hole, and a model predicts the variable.
Local variables have random numbers instead of names, so a model can only use their context.

Reference: Allamanis et al. 2018, "Learning to represent programs with graphs".
"""

import ast
import functools
from typing import NamedTuple

import numpy as np

MAX_VARIABLES = 12
HOLE = "<hole>"
# A tree edge goes at most this many steps up and this many steps down.
MAX_STEPS = 3
# One label per ancestor and descendant distance, and two (before, after) per other pair.
NUM_TREE_LABELS = 2 * MAX_STEPS + 1 + 2 * MAX_STEPS**2
LAST_USE, NEXT_USE, EARLIER_USE, LATER_USE, VARIABLE_BEFORE, VARIABLE_AFTER = range(6)
NUM_NAME_LABELS = 6
NO_EDGE = -1

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.Lambda, ast.ClassDef, ast.Global, ast.Nonlocal)
# Nodes that are merged into the kind of their parent.
_FOLDED = (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)
_VARIABLES = (ast.Name, ast.arg, ast.ExceptHandler)
_NAMED = (*_VARIABLES, ast.Attribute, ast.keyword, ast.alias)


class Tree(NamedTuple):
    """The n nodes of a function in source order, and its hole."""

    kinds: tuple[str, ...]  # class with its operator or context, such as "BinOp/Add"
    roles: tuple[str, ...]  # field of the parent that contains the node, such as "left"
    names: tuple[str, ...]  # identifier, or "" for local variables and others
    variables: tuple[int, ...]  # number of the local variable that the node names, or -1
    parents: tuple[int, ...]  # index; -1 for the function
    hole: int = -1  # index of the node whose variable is to be predicted
    answer: int = -1  # number of this variable


def find_functions(source):
    """Returns the functions of a module that contain no nested scope, as nodes of `ast`."""

    def has_scope(node):
        return any(isinstance(child, _SCOPES) for child in ast.walk(node) if child is not node)

    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, _FUNCTIONS))
    return [node for node in functions if not has_scope(node)]


def make_tree(function):
    """Returns the `Tree` of a node of `ast`, without its docstring and decorators."""
    kinds, roles, parents, nodes = zip(*_visit(function, "", -1, []))
    names, numbers = [_name(node) for node in nodes], {}
    for node, name in zip(nodes, names):
        binds = isinstance(getattr(node, "ctx", ast.Store()), ast.Store)
        if isinstance(node, _VARIABLES) and binds and name not in ("self", "cls", "_"):
            numbers.setdefault(name, len(numbers))
    variables = tuple(
        numbers.get(name, -1) if isinstance(node, _VARIABLES) else -1
        for node, name in zip(nodes, names)
    )
    names = tuple("" if number >= 0 else name for name, number in zip(names, variables))
    return Tree(kinds, roles, names, variables, parents)


def _visit(node, role, parent, rows):
    """Appends (kind, role, parent, node) of a subtree to `rows` in source order."""
    folded = [child for child in ast.iter_child_nodes(node) if isinstance(child, _FOLDED)]
    kind = "/".join(type(part).__name__ for part in (node, *folded))
    if isinstance(node, ast.Constant):
        kind += "/" + type(node.value).__name__
    index = len(rows)
    rows.append((kind, role, parent, node))
    for field, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        if field == "body" and isinstance(children[0], ast.Expr):
            is_docstring = isinstance(children[0].value, ast.Constant)
            children = children[1:] if is_docstring else children
        for child in children if field != "decorator_list" else ():
            if isinstance(child, ast.AST) and not isinstance(child, _FOLDED):
                _visit(child, field, index, rows)
    return rows


def _name(node):
    if isinstance(node, ast.Constant):
        return repr(node.value) if len(repr(node.value)) <= 12 else ""
    fields = ("id", "attr", "arg", "name") if isinstance(node, _NAMED) else ()
    return next((getattr(node, field) for field in fields if getattr(node, field, None)), "")


@functools.cache
def label_tree_edges(parents):
    """Returns the labels of the paths between nodes in the tree, int8 `[n, n]`.

    The path from node `i` to node `j` goes `up` to their lowest common ancestor and then `down`.
    (0, 0) is the node itself, (1, 0) its parent, (0, 1) a child, and (1, 1) a sibling. If both
    numbers are positive, nodes before and after `i` have different labels. Paths of more than
    `MAX_STEPS` steps up or down have no edge. `parents` is -1 for the root.
    """
    size = len(parents)
    # ancestors[i, j]: whether j is i or an ancestor of i.
    ancestors = np.eye(size, dtype=np.int32)
    for node, parent in enumerate(parents):
        if parent >= 0:
            ancestors[node] += ancestors[parent]
    depth, shared = ancestors.sum(1), ancestors @ ancestors.T
    up, down = depth[:, None] - shared, depth[None, :] - shared
    after = np.arange(size)[None, :] > np.arange(size)[:, None]
    labels = label_path(up, down, after)
    return np.where(np.maximum(up, down) > MAX_STEPS, NO_EDGE, labels).astype(np.int8)


def label_path(up, down, after=0):
    """Returns the label of a path of at most `MAX_STEPS` steps each way; takes arrays or ints."""
    sideways = 2 * MAX_STEPS + 1 + 2 * (MAX_STEPS * (up - 1) + down - 1) + after
    return np.where((up > 0) & (down > 0), sideways, np.where(up > 0, MAX_STEPS + up, down))


@functools.cache
def label_name_edges(variables, hole):
    """Returns the labels of edges between mentions of variables, int8 `[n, n]`.

    A mention has edges to the last, next, earlier and later mentions of the same variable, and to
    the mentions of any variable directly before and after it. The hole mentions no variable.
    """
    labels = np.full((len(variables), len(variables)), NO_EDGE, np.int8)
    mentions = [i for i, variable in enumerate(variables) if variable >= 0 or i == hole]
    for before, after in zip(mentions, mentions[1:]):
        labels[after, before], labels[before, after] = VARIABLE_BEFORE, VARIABLE_AFTER
    for variable in set(variables) - {-1}:
        same = [i for i in mentions if variables[i] == variable]
        for a, first in enumerate(same):
            labels[same[a + 1 :], first] = EARLIER_USE
            labels[first, same[a + 1 :]] = LATER_USE
        for first, second in zip(same, same[1:]):
            labels[second, first], labels[first, second] = LAST_USE, NEXT_USE
    return labels


def make_examples(tree, rng):
    """Returns a copy of the tree for each use of a variable, which is replaced by a hole.

    Variables get random numbers. Holes whose variable is not mentioned elsewhere are left out, and
    those of trees without another variable or with more than `MAX_VARIABLES`.
    """
    examples = []
    for hole, (kind, answer) in enumerate(zip(tree.kinds, tree.variables)):
        variables, names = list(tree.variables), list(tree.names)
        variables[hole], names[hole] = -1, HOLE
        present = sorted(set(variables) - {-1})
        is_use = kind == "Name/Load" and answer in present
        if is_use and 2 <= len(present) <= MAX_VARIABLES:
            numbers = dict(zip(present, rng.sample(range(MAX_VARIABLES), len(present))))
            variables = tuple(numbers.get(variable, -1) for variable in variables)
            content = {"names": tuple(names), "variables": variables}
            examples.append(tree._replace(**content, hole=hole, answer=numbers[answer]))
    return examples
