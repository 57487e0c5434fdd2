"""Draws the band of relative scores: python docs/figures/band.py

Left: products of the queries with the table rows, by relative id. Right: the same numbers in the
matrix of all pairs.
"""

from charts import save
from diagrams import (
    BAND,
    LEFT_TAIL,
    RIGHT_TAIL,
    draw_arrow,
    draw_label,
    draw_matrix,
    new_axes,
)

LENGTH, K = 8, 2
IDS = 2 * K + 1


def color_of(relative_id):
    """Returns the color of a relative id."""
    return {0: LEFT_TAIL, 2 * K: RIGHT_TAIL}.get(relative_id, BAND)


def by_id(i, relative_id):
    return color_of(relative_id), str(relative_id)


def by_key(i, j):
    relative_id = max(-K, min(K, j - i)) + K
    return color_of(relative_id), str(relative_id)


def main():
    figure, (axis,) = new_axes(8.2, 4.6)
    draw_matrix(axis, LENGTH, IDS, by_id)
    draw_matrix(axis, LENGTH, LENGTH, by_key, left=IDS + 3)
    draw_arrow(axis, (IDS + 0.3, LENGTH / 2), (IDS + 2.7, LENGTH / 2))
    draw_label(axis, IDS / 2, -0.6, "relative id")
    draw_label(axis, IDS + 3 + LENGTH / 2, -0.6, "key j")
    draw_label(axis, -0.6, LENGTH / 2, "query i", rotation=90)
    draw_label(axis, IDS / 2, LENGTH + 0.7, r"$q\,(w^K)^T$:  [T, 2K + 1]")
    draw_label(axis, IDS + 3 + LENGTH / 2, LENGTH + 0.7, "relative scores:  [T, S]")
    axis.set(xlim=(-1.2, IDS + LENGTH + 3.2), ylim=(LENGTH + 1.2, -1.1))
    save(figure, "band")


if __name__ == "__main__":
    main()
