"""Draws the tails and the band of flash attention: python docs/figures/flash_tails.py"""

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

LENGTH, K = 9, 3
COLORS = {-K: LEFT_TAIL, K: RIGHT_TAIL}


def pairs(i, j):
    distance = max(-K, min(K, j - i))
    return COLORS.get(distance, BAND), ""


def by_id(i, r):
    distance = r - K
    is_pair = 0 <= i + distance < LENGTH
    return (COLORS.get(distance, BAND) if is_pair else "none"), ""


def main():
    figure, (axis,) = new_axes(8.6, 4.8)
    second = LENGTH + 3
    draw_matrix(axis, LENGTH, LENGTH, pairs)
    draw_matrix(axis, LENGTH, 2 * K + 1, by_id, left=second)
    draw_arrow(axis, (LENGTH + 0.3, LENGTH / 2), (second - 0.3, LENGTH / 2))
    draw_label(axis, LENGTH / 2, -0.6, "pairs: two tails and a band")
    draw_label(axis, second + K + 0.5, -0.6, "2K + 1 scores per query")
    draw_label(axis, -0.6, LENGTH / 2, "query i", rotation=90)
    draw_label(axis, LENGTH / 2, LENGTH + 0.6, "key j")
    draw_label(axis, second + K + 0.5, LENGTH + 0.6, "relative id r")
    axis.set(xlim=(-1.2, second + 2 * K + 1.2), ylim=(LENGTH + 1.1, -1.2))
    save(figure, "flash_tails")


if __name__ == "__main__":
    main()
