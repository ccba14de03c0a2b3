"""Figures of the book: neutral colours and no background, so that they fit a light or dark page."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

# Reads at a contrast above 4.5 on white, and nearly so on the theme's dark page.
INK = "#767676"
# Distinct for colour-blind readers (Okabe and Ito, 2008), those of middle lightness first.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
_STYLE = {
    "figure.figsize": (5.2, 3.8),
    "figure.dpi": 130,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": "medium",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": mpl.cycler(color=COLOURS),
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 2,
}


def use_style() -> None:
    """Set Matplotlib's defaults for the session to the book's style."""
    mpl.rcParams.update(_STYLE)


def plot_weights(weights, query_labels, key_labels, title="", ax=None, brightest=None):
    """A heat map of attention weights, one row a query, one column a key, with the numbers in it.

    The colours run from 0 to ``brightest``.

    Args:
        weights: ``(q, k)``, array or CPU tensor, between 0 and 1.
        query_labels: One text for each row.
        key_labels: One text for each column.
        title: Text above the map.
        ax: The axes to draw on; a new figure by default.
        brightest: The weight of the brightest colour; the largest weight by default. Maps that
            are compared need a common one.

    Returns:
        The axes.

    Raises:
        ValueError: Labels and weights do not fit together.
    """
    weights = np.asarray(weights, dtype=float)
    expected = (len(query_labels), len(key_labels))
    if weights.shape != expected:
        raise ValueError(
            f"weights must have shape (queries, keys) = {expected}; got {weights.shape}"
        )
    if ax is None:
        _, ax = plt.subplots(figsize=(1.6 + 0.75 * expected[1], 1.2 + 0.5 * expected[0]))
    brightest = weights.max() if brightest is None else brightest
    ax.imshow(weights, vmin=0, vmax=brightest, cmap="viridis", aspect="auto")
    for (row, column), weight in np.ndenumerate(weights):
        colour = "black" if weight > 0.6 * brightest else "white"
        ax.text(column, row, f"{weight:.2f}", ha="center", va="center", color=colour)
    ax.set_xticks(range(expected[1]), key_labels)
    ax.set_yticks(range(expected[0]), query_labels)
    ax.set(xlabel="keys", ylabel="queries", title=title)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return ax


def plot_lines(x, lines, xlabel, ylabel, log=False, title="", ax=None):
    """Several lines over one axis, named in a legend below.

    Args:
        x: ``(n,)``, increasing.
        lines: A dict from name to ``(n,)`` values.
        xlabel: Text of the horizontal axis.
        ylabel: Text of the vertical axis.
        log: Whether the horizontal axis is logarithmic.
        title: Text above the lines.
        ax: The axes to draw on; a new figure by default.

    Returns:
        The axes.

    Raises:
        ValueError: A line has another length than ``x``.
    """
    if ax is None:
        _, ax = plt.subplots()
    styles = ["-", "--", "-.", ":"]
    for number, (name, y) in enumerate(lines.items()):
        if len(y) != len(x):
            raise ValueError(
                f"line {name!r} must have {len(x)} values, one for each x; got {len(y)}"
            )
        ax.plot(x, y, styles[number % 4], label=name)
    if log:
        ax.set_xscale("log")
    ax.set(xlabel=xlabel, ylabel=ylabel, title=title)
    ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    return ax


def plot_matrices(lines):
    """Equations of matrices, each matrix as a coloured grid under its name and shape.

    One cell has the same size in all of them. Blue is negative and red positive, on a scale of
    each matrix's own.

    Args:
        lines: A list of equations from top to bottom, each a list of texts, such as ``"×"``, and
            of pairs ``(name, matrix)`` with a matrix ``(rows, columns)``.

    Returns:
        The axes.
    """
    _, ax = plt.subplots(figsize=(6, 1.9 * len(lines)))
    top = 0
    for line in lines:
        height = max(item[1].shape[0] for item in line if not isinstance(item, str))
        middle, left = top - height / 2, 0
        for item in line:
            if isinstance(item, str):
                width = 1 + 0.42 * max(map(len, item.split("\n")))
                ax.text(left + width / 2, middle, item, ha="center", va="center")
            else:
                width = _grid(ax, left, middle, *item)
            left += width
        top -= height + 3.5
    ax.set_aspect("equal")
    ax.axis("off")
    return ax


def _grid(ax, left, middle, name, matrix):
    """One matrix of :func:`plot_matrices`; its width in cells."""
    rows, columns = matrix.shape
    upper = middle + rows / 2
    largest = np.abs(matrix).max()
    ax.pcolormesh(
        left + np.arange(columns + 1),
        upper - np.arange(rows + 1),
        matrix,
        cmap="RdBu_r",
        vmin=-largest,
        vmax=largest,
    )
    label = f"{name}\n{rows} × {columns}"
    ax.text(left + columns / 2, upper + 0.2, label, ha="center", va="bottom")
    return columns
