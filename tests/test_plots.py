"""The book's figures show what they were given."""

import subprocess
import sys
from fractions import Fraction
from itertools import combinations

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from attention_lib import plots

mpl.use("agg")

# What is seen of linear RGB without one kind of cones (Machado, Oliveira and Fernandes 2009,
# doi:10.1109/TVCG.2009.113, severity 1), and what a grey print keeps.
LUMINANCE = [0.2126, 0.7152, 0.0722]  # WCAG 2, relative luminance
SEEN = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                   [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                     [-0.011820, 0.042940, 0.968881]],
    "grey": [LUMINANCE] * 3,
}  # fmt: skip
# Linear sRGB to CIE XYZ (IEC 61966-2-1)
XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
APART = 15  # in CIE Lab, where 2.3 is the least that is seen side by side; thin lines need more


@pytest.fixture(autouse=True)
def _close_figures():
    with mpl.rc_context():
        yield
    plt.close("all")


def test_heat_map_writes_every_weight_at_its_row_and_column():
    weights = np.array([[0.1, 0.7, 0.2], [0.95, 0.0, 0.05]])
    ax = plots.plot_weights(weights, ["red", "bag"], ["a", "b", "c"], title="T")
    shown = {tuple(map(int, text.get_position())): text.get_text() for text in ax.texts}
    assert shown == {(c, r): f"{w:.2f}" for (r, c), w in np.ndenumerate(weights)}
    assert [t.get_text() for t in ax.get_yticklabels()] == ["red", "bag"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["a", "b", "c"]
    np.testing.assert_array_equal(ax.collections[0].get_array(), weights)
    assert ax.collections[0].get_clim() == (0, 0.95)
    assert ax.get_title() == "T"


@pytest.mark.parametrize("one", [True, Fraction(1), np.float16(1)])
def test_weights_of_any_real_type_are_drawn(one):
    ax = plots.plot_weights([[one, one - one], [0 * one, one]], ["a", "b"], ["a", "b"])
    assert [text.get_text() for text in ax.texts] == ["1.00", "0.00", "0.00", "1.00"]


def test_maps_that_are_compared_share_their_colours():
    ax = plots.plot_weights(np.array([[0.1, 0.7]]), ["q"], ["a", "b"], brightest=1)
    assert ax.collections[0].get_clim() == (0, 1)


def test_wide_maps_show_no_numbers():
    assert not plots.plot_weights(np.ones((2, 13)), "ab", "abcdefghijklm").texts
    assert len(plots.plot_weights(np.ones((2, 12)), "ab", "abcdefghijkl").texts) == 24


@pytest.mark.parametrize(
    ("rows", "columns", "size"),
    [(2, 3, (1.6 + 3 * 0.75, 1.2 + 2 * 0.5)), (2, 13, (1.6 + 13 * 0.3, 1.2 + 2 * 0.3))],
)
def test_maps_have_so_much_room_for_each_row_and_column(rows, columns, size):
    ax = plots.plot_weights(np.ones((rows, columns)), range(rows), range(columns))
    assert tuple(ax.figure.get_size_inches()) == pytest.approx(size)
    assert ax.get_title() == ""
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("keys", "queries")
    assert {tick.tick1line.get_markersize() for tick in ax.xaxis.get_major_ticks()} == {0}
    labels = [*ax.get_xticklabels(), *ax.get_yticklabels()]
    assert {label.get_rotation() for label in labels} == {0}
    assert ax.collections[0].get_cmap().name == "viridis"
    assert len(ax.figure.axes) == 1, "no bar of colours"


@pytest.mark.parametrize(
    ("shape", "columns", "size", "empty"),
    [
        ((4, 3, 11), 3, (3 * 2.42 + 1, 2 * 2.4 + 0.4), 2),
        ((2, 11, 3), 4, (2 * 1.6 + 1, 3.22 + 0.4), 0),
    ],
)
def test_heads_have_so_much_room_for_each_row_and_column(shape, columns, size, empty):
    heads, rows, keys = shape
    axes = plots.plot_heads(np.ones(shape), range(rows), range(keys), columns=columns)
    figure = axes[0].figure
    assert tuple(figure.get_size_inches()) == pytest.approx(size)
    assert figure.get_layout_engine().__class__.__name__ == "ConstrainedLayoutEngine"
    assert [ax.get_title() for ax in axes] == [f"head {number}" for number in range(heads)]
    assert [ax.axison for ax in figure.axes] == [True] * heads + [False] * empty
    assert {label.get_rotation() for label in axes[-1].get_xticklabels()} == {90}
    assert {label.get_rotation() for label in axes[0].get_yticklabels()} == {0}
    assert not any(ax.texts for ax in axes)
    for group in (axes[0].get_shared_x_axes(), axes[0].get_shared_y_axes()):
        assert all(group.joined(axes[0], ax) for ax in axes)


def test_four_heads_stand_side_by_side_by_default():
    axes = plots.plot_heads(np.ones((5, 2, 2)), "ab", "cd")
    assert axes[0].get_gridspec().get_geometry() == (2, 4)


def test_every_head_has_a_map_with_common_colours_and_labels_at_the_edges():
    weights = np.random.default_rng(0).random((5, 3, 2))
    axes = plots.plot_heads(weights, ["x", "y", "z"], ["a", "b"], title="h{}", columns=3)
    assert [ax.get_title() for ax in axes] == ["h0", "h1", "h2", "h3", "h4"]
    for ax, expected in zip(axes, weights, strict=True):
        np.testing.assert_array_equal(ax.collections[0].get_array(), expected)
        assert ax.collections[0].get_clim() == (0, weights.max())
    assert [bool(ax.get_ylabel()) for ax in axes] == [True, False, False, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_maps_take_tensors_of_any_float_dtype_that_need_gradients(dtype):
    weights = torch.tensor([[0.25, 0.75]], dtype=dtype, requires_grad=True)
    ax = plots.plot_weights(weights, ["q"], ["a", "b"])
    np.testing.assert_array_equal(ax.collections[0].get_array(), [[0.25, 0.75]])
    (head,) = plots.plot_heads(weights[None], ["q"], ["a", "b"])
    np.testing.assert_array_equal(head.collections[0].get_array(), [[0.25, 0.75]])


def test_weight_of_a_patch_covers_its_pixels_and_no_others():
    image = np.arange(24.0).reshape(4, 6)
    weights = torch.tensor([[0.1, 0.2, 0.3], [0.0, 0.4, 0.0]]).bfloat16()
    ax = plots.plot_image_weights(image, weights, title="3")
    below, above = (picture.get_array() for picture in ax.images)
    np.testing.assert_array_equal(below, image)
    for (row, column), pixel in np.ndenumerate(above):
        assert pixel == weights[row // 2, column // 2].item()
    assert ax.images[1].get_clim() == (0, weights.max().item())
    assert ax.images[0].get_cmap().name == "gray_r"
    assert (ax.get_title(), list(ax.get_xticks()), list(ax.get_yticks())) == ("3", [], [])
    assert all(spine.get_visible() for spine in ax.spines.values())
    assert tuple(ax.figure.get_size_inches()) == pytest.approx((2.6, 2.8))
    tint = ax.images[1].get_cmap()
    np.testing.assert_allclose([tint(0.0), tint(1.0)], [(*plots.TINT, 0), (*plots.TINT, 0.7)])
    _, other = plt.subplots()
    assert plots.plot_image_weights(image, weights + 0.1, ax=other, brightest=0.8) is other
    assert other.images[1].get_clim() == (0, 0.8)
    assert other.get_title() == ""


def test_weight_of_a_patch_can_be_read_from_its_frame_in_a_grey_print():
    weights = np.array([[0.1, 0.2, 0.3], [0.0, 0.4, 0.0]])
    ax = plots.plot_image_weights(np.zeros((4, 6)), weights)
    frames = {frame.get_xy(): frame.get_linewidth() for frame in ax.patches}
    thickest = frames[1.5, 1.5]
    assert thickest == 2.5
    assert {frame.get_edgecolor() for frame in ax.patches} == {mpl.colors.to_rgba(plots.COLOURS[1])}
    assert {(f.get_width(), f.get_height(), f.get_fill()) for f in ax.patches} == {(2, 2, False)}
    oblong = plots.plot_image_weights(np.zeros((4, 9)), weights).patches[-1]
    assert (oblong.get_xy(), oblong.get_width(), oblong.get_height()) == ((2.5, 1.5), 3, 2)
    assert frames == {
        (2 * column - 0.5, 2 * row - 0.5): pytest.approx(thickest * weight / 0.4)
        for (row, column), weight in np.ndenumerate(weights)
        if weight > 0
    }
    assert not plots.plot_image_weights(np.zeros((4, 6)), 0 * weights).patches


def test_training_is_drawn_as_a_running_mean_at_its_last_step():
    ax = plots.plot_training({"one": np.arange(40.0), "two": np.ones(40)})
    np.testing.assert_allclose(ax.lines[0].get_xdata(), np.arange(2, 41))
    np.testing.assert_allclose(ax.lines[0].get_ydata(), np.arange(39) + 0.5)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "two"]
    assert plots.plot_training({"one": [1.0]}).get_legend() is None
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == ("step", "loss", "")
    assert ax.get_ylim()[0] == 0
    names = dict.fromkeys("abcde", np.ones(40))
    _, other = plt.subplots()
    assert plots.plot_training(names, "error", "T", ax=other) is other
    assert (other.get_ylabel(), other.get_title()) == ("error", "T")
    assert [line.get_linestyle() for line in other.lines] == ["-", "--", "-.", ":", "-"]


def test_legend_stands_below_in_two_columns_without_a_frame():
    ax = plots.plot_lines([1, 2], {"a": [1, 2], "b": [2, 1], "c": [0, 1]}, "x", "y")
    legend = ax.get_legend()
    assert not legend.get_frame_on()
    assert legend._ncols == 2
    ax.figure.canvas.draw()
    place = legend.get_window_extent().transformed(ax.transAxes.inverted())
    assert place.y1 == pytest.approx(-0.2, abs=0.03)
    assert (place.x0 + place.x1) / 2 == pytest.approx(0.5)


def test_only_who_draws_a_map_loads_seaborn():
    code = "import sys, attention_lib.plots; print('seaborn' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def test_lines_carry_their_data_and_names():
    x = np.array([1.0, 10.0, 100.0])
    ax = plots.plot_lines(x, {"soft": x * 2, "hard": x * 0}, "t", "price", log=True)
    assert [line.get_label() for line in ax.lines] == ["soft", "hard"]
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), x * 2)
    assert (ax.get_xscale(), ax.get_xlabel(), ax.get_ylabel()) == ("log", "t", "price")
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), x)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["soft", "hard"]
    ax = plots.plot_lines(x, dict.fromkeys("abcde", x), "t", "price", title="T")
    assert (ax.get_xscale(), ax.get_title()) == ("linear", "T")
    assert [line.get_linestyle() for line in ax.lines] == ["-", "--", "-.", ":", "-"]
    assert plots.plot_lines(x, {"a": x}, "", "").get_title() == ""


def test_equation_of_matrices_shows_each_with_name_shape_and_values_in_order():
    q, k = np.arange(-3.0, 3.0).reshape(3, 2), np.ones((2, 5))
    ax = plots.plot_matrices([[("Q", q), "×", ("Kᵀ", k)], ["=", ("scores", q @ k)]])
    texts = [text.get_text() for text in ax.texts]
    assert texts == ["Q\n3 × 2", "×", "Kᵀ\n2 × 5", "=", "scores\n3 × 5"]
    for mesh, matrix in zip(ax.collections, (q, k, q @ k), strict=True):
        np.testing.assert_array_equal(mesh.get_array(), matrix)
        low, high = mesh.get_clim()
        assert -low == high > np.abs(matrix).max()
        corners = mesh.get_coordinates()
        np.testing.assert_allclose(np.diff(corners[..., 0], axis=1), 1)
        np.testing.assert_allclose(np.diff(corners[..., 1], axis=0), -1)  # row 0 is at the top
    x = [text.get_position()[0] for text in ax.texts[:3]]
    assert x == sorted(x)
    assert tuple(ax.figure.get_size_inches()) == pytest.approx((6, 3.8))
    assert ax.get_aspect() == 1
    assert not ax.axison


def test_matrices_stand_beside_each_other_in_the_middle_of_their_line():
    a, b = np.ones((3, 2)), np.ones((1, 4))
    ax = plots.plot_matrices([[("A", a), "×\nso long", ("B", b)], [("C", a)]])
    boxes = [mesh.get_coordinates().reshape(-1, 2) for mesh in ax.collections]
    left, upper = np.array([box.min(0)[0] for box in boxes]), [box.max(0)[1] for box in boxes]
    width = 1 + 0.42 * 7
    np.testing.assert_allclose(left, [0, 2 + width, 0])
    np.testing.assert_allclose(upper, [0, -1, -6.5])
    name, sign, other, _ = ax.texts
    np.testing.assert_allclose(sign.get_position(), [2 + width / 2, -1.5])
    np.testing.assert_allclose(name.get_position(), [1, 0.2])
    np.testing.assert_allclose(other.get_position(), [2 + width + 2, -0.8])
    assert (sign.get_ha(), sign.get_va()) == ("center", "center")
    assert (name.get_ha(), name.get_va()) == ("center", "bottom")


def test_colours_of_a_matrix_reach_40_percent_beyond_its_largest_number():
    mesh = plots.plot_matrices([[("A", np.array([[-5.0, 2.0]]))]]).collections[0]
    assert mesh.get_clim() == pytest.approx((-7, 7))
    assert mesh.get_cmap().name == "RdBu_r"


def test_equation_of_matrices_marks_what_is_negative_for_a_grey_print():
    matrix = np.array([[1.0, -2.0, 0.0], [-3.0, 4.0, 5.0]])
    ax = plots.plot_matrices([[("A", matrix)]])
    marks = set(zip(*ax.lines[0].get_data(), strict=True))
    corners = ax.collections[0].get_coordinates()
    middles = (corners[:-1, :-1] + corners[1:, 1:]) / 2
    assert marks == {tuple(middles[0, 1]), tuple(middles[1, 0])}
    marks = ax.lines[0]
    assert (marks.get_linestyle(), marks.get_marker(), marks.get_color()) == ("None", "_", "black")
    assert (marks.get_markersize(), marks.get_markeredgewidth()) == (5, 1.2)


def test_figures_draw_on_axes_that_they_are_given():
    _, ax = plt.subplots()
    assert plots.plot_lines([1], {"a": [1]}, "", "", ax=ax) is ax
    assert plots.plot_weights(np.ones((1, 1)), ["a"], ["b"], ax=ax) is ax


def linear(colour):
    """Linear RGB of a colour."""
    return np.array([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
                     for c in mpl.colors.to_rgb(colour)])  # fmt: skip


def lab(rgb):
    """CIE 1976 L*a*b* of linear RGB, white being that of the screen."""
    x, y, z = (f if (f := t ** (1 / 3)) > 6 / 29 else t * (29 / 6) ** 2 / 3 + 4 / 29
               for t in XYZ @ rgb / np.sum(XYZ, axis=1))  # fmt: skip
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def confused(lines, kind):
    """Pairs of lines that look alike; in a grey print the dashes help."""
    looks = [lab(np.clip(SEEN[kind] @ linear(line.get_color()), 0, 1)) for line in lines]
    return [
        (i, j)
        for i, j in combinations(range(len(lines)), 2)
        if np.linalg.norm(looks[i] - looks[j]) < APART
        and (kind != "grey" or lines[i].get_linestyle() == lines[j].get_linestyle())
    ]


def six_lines(draw):
    """As many lines as there are colours, drawn by one of the functions of the library."""
    plots.use_style()
    lines = {str(number): [1.0, 2.0] for number in range(6)}
    ax = draw(lines) if draw is plots.plot_training else draw([1, 2], lines, "x", "y")
    return ax.lines


@pytest.mark.parametrize("kind", SEEN)
@pytest.mark.parametrize("draw", [plots.plot_lines, plots.plot_training])
def test_lines_are_told_apart_without_one_kind_of_cones_and_in_grey(draw, kind):
    assert confused(six_lines(draw), kind) == []


@pytest.mark.parametrize("kind", ["protanopia", "deuteranopia"])
def test_check_of_the_colours_reports_those_that_look_alike(kind, monkeypatch):
    planted = mpl.cycler(color=mpl.color_sequences["tab10"])
    monkeypatch.setitem(plots._STYLE, "axes.prop_cycle", planted)
    assert confused(six_lines(plots.plot_lines), kind) != []


def test_check_of_a_grey_print_reports_lines_that_differ_in_colour_alone(monkeypatch):
    monkeypatch.setattr(plots, "_LINES", ["-"] * 4)
    lines = six_lines(plots.plot_lines)
    assert (4, 5) in confused(lines, "grey")
    assert confused(lines, "deuteranopia") == []


@pytest.mark.parametrize(("colour", "expected"), [("w", [100, 0, 0]), ("r", [53.2, 80.1, 67.2])])
def test_colours_have_the_coordinates_that_are_published(colour, expected):
    np.testing.assert_allclose(lab(linear(colour)), expected, atol=0.1)


def test_style_has_no_background_and_ink_that_reads_on_white():
    plots.use_style()
    assert mpl.rcParams["figure.facecolor"] == mpl.rcParams["axes.facecolor"] == "none"
    luminance = LUMINANCE @ linear(mpl.rcParams["text.color"])
    assert 1.05 / (luminance + 0.05) >= 4.5


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: plots.plot_weights(np.ones((2, 1)), ["a"], ["b", "c"]),
            "weights must have shape (queries, keys) = (1, 2); got (2, 1)",
        ),
        (
            lambda: plots.plot_heads(np.ones((2, 1)), ["a", "b"], ["c"]),
            "weights must have shape (heads, queries, keys); got (2, 1)",
        ),
        (
            lambda: plots.plot_image_weights(np.ones((4, 6)), np.ones((3, 1))),
            "patches must divide the image; got (3, 1) patches of (4, 6) pixels",
        ),
        (
            lambda: plots.plot_image_weights(np.ones((4, 6)), np.ones((2, 2, 2))),
            "patches must divide the image; got (2, 2, 2) patches of (4, 6) pixels",
        ),
        (
            lambda: plots.plot_lines([1, 2], {"soft": [1, 2, 3]}, "", ""),
            "line 'soft' must have 2 values, one for each x; got 3",
        ),
    ],
)
def test_labels_patches_and_lines_that_do_not_fit_are_refused(call, message):
    with pytest.raises(ValueError, match="must") as caught:
        call()
    assert str(caught.value) == message
