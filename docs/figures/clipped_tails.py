"""Draws how a reference row removes one tail: python docs/figures/clipped_tails.py"""

from charts import save
from diagrams import (
    BAND,
    LEFT_TAIL,
    MASKED,
    RIGHT_TAIL,
    draw_arrow,
    draw_label,
    draw_matrix,
    new_axes,
)

LENGTH, K = 8, 2


def all_ids(i, j):
    relative_id = max(-K, min(K, j - i)) + K
    color = {0: LEFT_TAIL, 2 * K: RIGHT_TAIL}.get(relative_id, BAND)
    return color, f"$s_{relative_id}$"


def differences(i, j):
    relative_id = max(-K, min(K, j - i)) + K
    if relative_id == 2 * K:
        return MASKED, "0"
    return (LEFT_TAIL if relative_id == 0 else BAND), f"$d_{relative_id}$"


def main():
    figure, (axis,) = new_axes(9.2, 4.8)
    second = LENGTH + 3
    draw_matrix(axis, LENGTH, LENGTH, all_ids)
    draw_matrix(axis, LENGTH, LENGTH, differences, left=second)
    draw_arrow(axis, (LENGTH + 0.3, LENGTH / 2), (second - 0.3, LENGTH / 2))
    draw_label(axis, LENGTH / 2, -0.6, r"relative scores $s_r = q\cdot w_r$")
    draw_label(axis, second + LENGTH / 2, -0.6, r"differences $d_r = q\cdot(w_r - w_{2K})$")
    draw_label(axis, -0.6, LENGTH / 2, "query i", rotation=90)
    for left in (0, second):
        draw_label(axis, left + LENGTH / 2, LENGTH + 0.6, "key j")
    axis.set(xlim=(-1.2, second + LENGTH + 0.2), ylim=(LENGTH + 1.1, -1.2))
    save(figure, "clipped_tails")


if __name__ == "__main__":
    main()
