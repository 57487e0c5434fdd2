"""Draws one block of queries, bidirectional and causal: python docs/figures/blocks.py"""

from charts import save
from diagrams import (
    BAND,
    LEFT_TAIL,
    MASKED,
    RIGHT_TAIL,
    draw_frame,
    draw_label,
    draw_matrix,
    new_axes,
)

LENGTH, K, BLOCK, FIRST = 12, 2, 3, 6
WINDOW = FIRST - K + 1, FIRST + BLOCK + K - 1


def in_block(i):
    return FIRST <= i < FIRST + BLOCK


def bidirectional(i, j):
    if not in_block(i):
        return MASKED, ""
    distance = j - i
    return (LEFT_TAIL if distance <= -K else RIGHT_TAIL if distance >= K else BAND), ""


def causal(i, j):
    if not in_block(i) or j > i:
        return MASKED, "×" if in_block(i) and j < FIRST + BLOCK else ""
    return (LEFT_TAIL if j - i <= -K else BAND), ""


def main():
    figure, axes = new_axes(9.4, 5.0, count=2)
    for axis, title, style, end in (
        (axes[0], "bidirectional", bidirectional, WINDOW[1]),
        (axes[1], "causal", causal, FIRST + BLOCK),
    ):
        draw_matrix(axis, LENGTH, LENGTH, style)
        draw_frame(axis, WINDOW[0], FIRST, end - WINDOW[0], BLOCK)
        draw_label(axis, LENGTH / 2, -1.5, title, fontsize=12)
        draw_label(axis, LENGTH / 2, -0.5, "key j")
        draw_label(axis, -0.7, LENGTH / 2, "query i", rotation=90)
        draw_label(axis, (WINDOW[0] + end) / 2, FIRST - 0.6, "window", fontsize=9)
        axis.set(xlim=(-1.2, LENGTH + 0.3), ylim=(LENGTH + 0.3, -2.1))
    draw_label(
        axes[1], (FIRST + BLOCK + LENGTH) / 2, FIRST + BLOCK + 0.6, "not computed", fontsize=9
    )
    save(figure, "blocks")


if __name__ == "__main__":
    main()
