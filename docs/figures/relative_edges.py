"""Draws the vectors of one query (equations 3 to 5): python docs/figures/relative_edges.py"""

from charts import TEXT, save
from diagrams import BAND, LEFT_TAIL, RIGHT_TAIL, draw_arrow, draw_label, new_axes, signed
from matplotlib.patches import Circle

LENGTH, QUERY, K = 9, 4, 2


def main():
    figure, (axis,) = new_axes(9, 3.0)
    for position in range(LENGTH):
        x = 2 * position
        is_query = position == QUERY
        axis.add_patch(
            Circle((x, 0), 0.55, facecolor="none", edgecolor=TEXT, linewidth=2.5 if is_query else 1)
        )
        draw_label(axis, x, 0.02, f"$x_{{{position}}}$", fontsize=11)
        distance = max(-K, min(K, position - QUERY))
        color = {-K: LEFT_TAIL, K: RIGHT_TAIL}.get(distance, BAND)
        if not is_query:
            start = 2 * QUERY + (0.35 if position > QUERY else -0.35), -0.55
            bend = -0.55 if position > QUERY else 0.55
            draw_arrow(axis, start, (x, -0.62), bend, color)
        draw_label(axis, x, 1.15, f"$w_{{{signed(distance)}}}$", color=color, fontsize=13)
    draw_label(axis, 2 * QUERY, 2.0, "query", fontsize=9)
    draw_label(axis, 1, 2.0, "clipped: one vector for all", fontsize=9, color=LEFT_TAIL)
    end = 2 * LENGTH - 3
    draw_label(axis, end, 2.0, "clipped: one vector for all", fontsize=9, color=RIGHT_TAIL)
    axis.set(xlim=(-1.2, 2 * LENGTH - 0.8), ylim=(2.4, -3.2))
    save(figure, "relative_edges")


if __name__ == "__main__":
    main()
