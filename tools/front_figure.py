"""Draw the figure of the front page, the logo and the icon: ``python tools/front_figure.py``.

Every bar and number comes from the library's own softmax. Text is mid-grey and the background
is transparent, so that one file reads on a white page and on a dark one.
"""

from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np

from attention_lib import softmax
from attention_lib.plots import COLOURS, INK

STATIC = Path(__file__).parents[1] / "_static"
BLUE, ORANGE = COLOURS[:2]

# The shop of chapter 1. A score is the number of words that query and key share.
PRICES = {
    "red cotton shirt": 20,
    "blue cotton shirt": 26,
    "red leather shoes": 80,
    "blue leather bag": 120,
}
QUERY = "red cotton shirt"


def draw_lookups(path):
    """Save a hard lookup beside a soft one: the weights on every key, and the two answers."""
    words = set(QUERY.split())
    scores = np.array([len(words & set(key.split())) for key in PRICES])
    hard = np.array([key == QUERY for key in PRICES], dtype=float)
    values = np.array(list(PRICES.values()))
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.2, 4.6), sharey=True)
    draw_panel(left, hard, values, BLUE, "hard lookup")
    draw_panel(right, softmax(scores), values, ORANGE, "soft lookup")
    figure.suptitle(f'query: "{QUERY}"', color=INK, x=0.02, ha="left", fontsize="medium")
    figure.tight_layout(w_pad=0.4)
    figure.savefig(path, transparent=True, dpi=200)


def draw_panel(axes, weights, values, colour, title):
    """Draw one lookup: a bar for the weight of every key, and the answer below."""
    words = [(*key.rsplit(maxsplit=1), price) for key, price in PRICES.items()]
    names = [f"{kind}\n{thing}: {price}" for kind, thing, price in words]
    axes.barh(names, np.ones(4), color=INK, alpha=0.15, height=0.6)
    axes.barh(names, weights, color=colour, height=0.6)
    for row, weight in enumerate(weights):
        axes.text(1.08, row, f"{weight:.2f}", color=INK, va="center")
    answer = f"answer  {weights @ values:.2f}"
    axes.text(0, 4.2, answer, color=colour, weight="bold", va="center")
    axes.set_title(title, color=colour, weight="bold", loc="left")
    axes.set(xlim=(0, 1.5), ylim=(4.6, -0.5), xticks=[])
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)


def logo(stroke):
    """SVG: the braces of a dict, and between them weights that all keys share."""
    weights = softmax(np.array([1.0, 2.0, 0.5]))
    bars = "".join(
        f'<rect x="{21 + 8 * i}" y="{48 - 48 * w:.1f}" width="6" height="{48 * w:.1f}" rx="1.5"'
        f' fill="{ORANGE if w == weights.max() else BLUE}"/>'
        for i, w in enumerate(weights)
    )
    brace = "M15 8c-6 0-7 3-7 8v8c0 5-1 8-5 8c4 0 5 3 5 8v8c0 5 1 8 7 8"
    braces = "".join(
        f'<path d="{brace}" transform="{t}" fill="none" stroke="{INK}" stroke-width="{stroke}"'
        ' stroke-linecap="round"/>'
        for t in ("", "translate(64 0) scale(-1 1)")
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64">{braces}{bars}</svg>\n'


if __name__ == "__main__":
    with plt.rc_context({"font.size": 16}):
        draw_lookups(STATIC / "lookups.png")
    (STATIC / "logo.svg").write_text(logo(stroke=4), encoding="utf-8")
    (STATIC / "favicon.svg").write_text(logo(stroke=6), encoding="utf-8")
