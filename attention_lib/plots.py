"""Figures of the book: neutral colours and no background, so that they fit a light or dark page."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

# Reads at a contrast above 4.5 on white, and nearly so on the theme's dark page.
_INK = "#767676"
# Distinct for colour-blind readers (Okabe and Ito, 2008), those of middle lightness first.
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
_STYLE = {
    "figure.figsize": (6.4, 3.6),
    "figure.dpi": 110,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "axes.titlesize": "medium",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": mpl.cycler(color=_COLOURS),
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "lines.linewidth": 2,
}


def use_style() -> None:
    """Set Matplotlib's defaults for the session to the book's style."""
    mpl.rcParams.update(_STYLE)


def plot_weights(weights, query_labels, key_labels, title="", ax=None):
    """A heat map of attention weights, one row a query, one column a key, with the numbers in it.

    Args:
        weights: ``(q, k)``, array or CPU tensor, between 0 and 1.
        query_labels: One text for each row.
        key_labels: One text for each column.
        title: Text above the map.
        ax: The axes to draw on; a new figure by default.

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
    ax.imshow(weights, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    for (row, column), weight in np.ndenumerate(weights):
        colour = "black" if weight > 0.6 else "white"
        ax.text(column, row, f"{weight:.2f}", ha="center", va="center", color=colour)
    ax.set_xticks(range(expected[1]), key_labels)
    ax.set_yticks(range(expected[0]), query_labels)
    ax.set(xlabel="keys", ylabel="queries", title=title)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return ax


def plot_lines(x, lines, xlabel, ylabel, log=False, title="", ax=None):
    """Several lines over one axis, named in a legend at the side.

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
    ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return ax
