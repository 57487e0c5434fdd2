"""Drawing of matrices and arrows for the figures of docs/how_it_works."""

from charts import BLUE, GREEN, ORANGE, TEXT, pyplot
from matplotlib.patches import FancyArrowPatch, Rectangle

BAND, LEFT_TAIL, RIGHT_TAIL, MASKED = BLUE, ORANGE, GREEN, "none"
# Text on a colored cell is dark: the cells are mid-tones on both themes.
CELL_TEXT = "#10151c"
MINUS = "\N{MINUS SIGN}"


def new_axes(width, height, count=1):
    """Returns (figure, list of axes) without ticks, with square cells and row 0 at the top."""
    figure, axes = pyplot.subplots(1, count, figsize=(width, height), squeeze=False)
    for axis in axes[0]:
        axis.set_aspect("equal")
        axis.invert_yaxis()
        axis.axis("off")
    return figure, list(axes[0])


def draw_matrix(axis, rows, columns, style, *, left=0):
    """Draws a matrix of cells.

    Args:
        axis: axes of `new_axes`.
        rows: number of rows.
        columns: number of columns.
        style: `style(i, j) -> (color, text)`; the color "none" leaves the cell empty.
        left: x of the first column.
    """
    for i in range(rows):
        for j in range(columns):
            color, text = style(i, j)
            corner = (left + j, i)
            axis.add_patch(Rectangle(corner, 1, 1, facecolor=color, edgecolor=TEXT, linewidth=0.6))
            if not text:
                continue
            axis.text(
                corner[0] + 0.5,
                corner[1] + 0.55,
                text,
                color=CELL_TEXT if color != "none" else TEXT,
                fontsize=9,
                ha="center",
                va="center",
            )


def draw_frame(axis, left, top, width, height):
    """Draws a thick rectangle around cells."""
    axis.add_patch(
        Rectangle((left, top), width, height, facecolor="none", edgecolor=TEXT, linewidth=2.2)
    )


def draw_label(axis, x, y, text, **options):
    """Draws text in the color of the figures."""
    axis.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": 10, **options})


def draw_arrow(axis, start, end, bend=0.0, color=TEXT):
    """Draws an arrow, bent by a fraction of its length."""
    axis.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=11,
            connectionstyle=f"arc3,rad={bend}",
            color=color,
            linewidth=1.3,
        )
    )


def signed(number):
    """Returns a number as text with a typographic minus sign."""
    return f"{MINUS}{-number}" if number < 0 else f"+{number}" if number else "0"
