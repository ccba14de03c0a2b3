"""Figures of the book: neutral colours and no background, so that they fit a light or dark page."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

# Reads at a contrast above 4.5 on white, and nearly so on the theme's dark page.
INK = "#767676"
# Distinct for colour-blind readers (Okabe and Ito, 2008), those of middle lightness first.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
TINT = mpl.colors.to_rgb(COLOURS[4])
_LINES = ["-", "--", "-.", ":"]
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

    The colours run from 0 to ``brightest``. Maps of more than 12 rows or columns show no numbers.

    Args:
        weights: ``(q, k)``, array or tensor of any float dtype on any device, between 0 and 1.
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
    weights = _array(weights)
    numbers = max(weights.shape) <= 12
    if ax is None:
        column, row = (0.75, 0.5) if numbers else (0.3, 0.3)
        size = (1.6 + column * weights.shape[1], 1.2 + row * weights.shape[0])
        _, ax = plt.subplots(figsize=size)
    brightest = weights.max() if brightest is None else brightest
    return _map(ax, weights, query_labels, key_labels, title, brightest, numbers)


def plot_heads(weights, query_labels, key_labels, title="head {}", columns=4):
    """A heat map of each head of a layer, in one figure, with the same colours in all.

    Args:
        weights: ``(heads, q, k)``, array or tensor of any float dtype on any device.
        query_labels: One text for each row.
        key_labels: One text for each column.
        title: Text above each map, ``{}`` stands for the number of the head.
        columns: Number of maps side by side at most.

    Returns:
        The axes, one for each head.

    Raises:
        ValueError: Labels and weights do not fit together.
    """
    weights = _array(weights)
    if weights.ndim != 3:
        raise ValueError(f"weights must have shape (heads, queries, keys); got {weights.shape}")
    side_by_side = min(columns, len(weights))
    rows = -(-len(weights) // side_by_side)
    height, width = (max(1.6, 0.22 * size) for size in weights.shape[1:])
    size = (side_by_side * width + 1, rows * (height + 0.8) + 0.4)
    _, grid = plt.subplots(
        rows, side_by_side, figsize=size, sharex=True, sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for number, ax in enumerate(grid.flat):
        if number >= len(weights):
            ax.axis("off")
            continue
        name = title.format(number)
        _map(ax, weights[number], query_labels, key_labels, name, weights.max(), numbers=False)
        ax.tick_params(axis="x", labelrotation=90)
        ax.label_outer()
    return list(grid.flat[: len(weights)])


def plot_image_weights(image, weights, title="", ax=None, brightest=None):
    """A grey image, its patches tinted by attention weights; the more weight, the more colour.

    A frame that grows thicker with the weight says the same in a grey print.

    Args:
        image: ``(height, width)``, array or tensor of any float dtype on any device.
        weights: ``(rows, columns)``, one weight a patch; they divide the image.
        title: Text above the image.
        ax: The axes to draw on; a new figure by default.
        brightest: The weight of the strongest tint; the largest weight by default. Maps that are
            compared need a common one.

    Returns:
        The axes.

    Raises:
        ValueError: The patches do not divide the image.
    """
    image, weights = _array(image), _array(weights)
    if image.ndim != 2 or weights.ndim != 2 or any(np.mod(image.shape, weights.shape)):
        raise ValueError(
            f"patches must divide the image; got {weights.shape} patches of {image.shape} pixels"
        )
    if ax is None:
        _, ax = plt.subplots(figsize=(2.6, 2.8))
    size = np.floor_divide(image.shape, weights.shape)
    over = np.kron(weights, np.ones(size))
    brightest = weights.max() if brightest is None else brightest
    ax.imshow(image, cmap="gray_r")
    # a colour that grows from clear to nearly opaque: the image shows through everywhere
    tint = mpl.colors.LinearSegmentedColormap.from_list("tint", [(*TINT, 0), (*TINT, 0.7)])
    ax.imshow(over, cmap=tint, vmin=0, vmax=brightest)
    for (row, column), weight in np.ndenumerate(weights):
        if weight > 0:
            corner = (column * size[1] - 0.5, row * size[0] - 0.5)
            frame = {"edgecolor": COLOURS[1], "linewidth": 2.5 * weight / brightest}
            ax.add_patch(plt.Rectangle(corner, size[1], size[0], fill=False, **frame))
    ax.spines[:].set_visible(True)  # white paper needs an edge on a white page
    ax.set(title=title, xticks=[], yticks=[])
    return ax


def plot_training(losses, ylabel="loss", title="", ax=None):
    """The losses of one or several trainings, each as a running mean over a twentieth of it.

    Args:
        losses: A dict from name to the losses of every step.
        ylabel: Text of the vertical axis.
        title: Text above the lines.
        ax: The axes to draw on; a new figure by default.

    Returns:
        The axes.
    """
    ax = plt.subplots()[1] if ax is None else ax
    for number, (name, values) in enumerate(losses.items()):
        n = max(1, len(values) // 20)
        means = np.convolve(values, np.ones(n) / n, mode="valid")
        ax.plot(np.arange(n, len(values) + 1), means, _LINES[number % 4], label=name)
    ax.set(xlabel="step", ylabel=ylabel, title=title, ylim=(0, None))
    if len(losses) > 1:
        _legend(ax)
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
    for number, (name, y) in enumerate(lines.items()):
        if len(y) != len(x):
            raise ValueError(
                f"line {name!r} must have {len(x)} values, one for each x; got {len(y)}"
            )
        ax.plot(x, y, _LINES[number % 4], label=name)
    if log:
        ax.set_xscale("log")
    ax.set(xlabel=xlabel, ylabel=ylabel, title=title)
    _legend(ax)
    return ax


def plot_matrices(lines):
    """Equations of matrices, each matrix as a coloured grid under its name and shape.

    One cell has the same size in all of them. Blue, with a minus in the cell, is negative and red
    positive, on a scale of each matrix's own.

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


def _legend(ax):
    """The names of the lines, below, where they fit on a phone too."""
    ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def _array(values):
    """NumPy in float64 from an array, or from a tensor of any dtype and device."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double()
    return np.asarray(values, dtype=float)


def _map(ax, weights, query_labels, key_labels, title, brightest, numbers):
    """The heat map of :func:`plot_weights` and :func:`plot_heads`."""
    import seaborn  # takes a second to load: only those who draw a map pay for it

    expected = (len(query_labels), len(key_labels))
    if weights.shape != expected:
        raise ValueError(
            f"weights must have shape (queries, keys) = {expected}; got {weights.shape}"
        )
    seaborn.heatmap(
        weights, vmin=0, vmax=brightest, cmap="viridis", annot=numbers, fmt=".2f", cbar=False,
        xticklabels=key_labels, yticklabels=query_labels, ax=ax,
    )  # fmt: skip
    ax.set(xlabel="keys", ylabel="queries", title=title)
    ax.tick_params(length=0, labelrotation=0)
    return ax


def _grid(ax, left, middle, name, matrix):
    """One matrix of :func:`plot_matrices`; its width in cells."""
    rows, columns = matrix.shape
    upper = middle + rows / 2
    limit = 1.4 * np.abs(matrix).max()  # the largest number is not so dark that it hides a minus
    ax.pcolormesh(
        left + np.arange(columns + 1),
        upper - np.arange(rows + 1),
        matrix,
        cmap="RdBu_r",
        vmin=-limit,
        vmax=limit,
    )
    row, column = np.nonzero(matrix < 0)
    ax.plot(left + column + 0.5, upper - row - 0.5, "_", color="black", ms=5, mew=1.2)
    label = f"{name}\n{rows} × {columns}"
    ax.text(left + columns / 2, upper + 0.2, label, ha="center", va="bottom")
    return columns
