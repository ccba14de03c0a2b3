"""Chapter 3: the softmax Jacobian and the statistics of scores, against closed forms."""

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_lib import softmax
from attention_lib.scaling import score_statistics, softmax_jacobian

WIDTHS = [1, 2, 7, 64, 257]


# ---------------------------------------------------------------------------- Jacobian


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=6))
def test_jacobian_agrees_with_autograd(scores):
    x = torch.tensor(scores, dtype=torch.float64)
    expected = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), x)
    np.testing.assert_allclose(softmax_jacobian(np.array(scores)), expected.numpy(), atol=1e-14)


def test_jacobian_agrees_with_finite_differences():
    scores, step = np.array([0.3, -1.0, 0.8]), 1e-6
    for j in range(3):
        moved = step * np.eye(3)[j]
        slope = (softmax(scores + moved) - softmax(scores - moved)) / (2 * step)
        np.testing.assert_allclose(softmax_jacobian(scores)[:, j], slope, atol=1e-9)


def test_jacobian_of_a_batch_is_the_jacobian_of_every_row():
    scores = np.random.default_rng(0).normal(size=(2, 3, 5))
    together = softmax_jacobian(scores)
    assert together.shape == (2, 3, 5, 5)
    for place in np.ndindex(2, 3):
        np.testing.assert_allclose(together[place], softmax_jacobian(scores[place]))


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=6))
def test_jacobian_is_symmetric_and_its_rows_sum_to_0(scores):
    jacobian = softmax_jacobian(np.array(scores))
    np.testing.assert_array_equal(jacobian, jacobian.T)
    np.testing.assert_allclose(jacobian.sum(axis=-1), 0, atol=1e-15)


@pytest.mark.parametrize("k", [1, 2, 5, 11])
def test_norm_for_equal_scores_has_a_closed_form(k):
    norm = np.linalg.norm(softmax_jacobian(np.zeros(k)))
    assert norm == pytest.approx(math.sqrt(k - 1) / k, abs=1e-15)


def test_jacobian_of_a_saturated_softmax_vanishes():
    assert (softmax_jacobian(np.array([1000.0, 0.0, -3.0])) == 0).all()
    two_tied = softmax_jacobian(np.array([1000.0, 1000.0, -3.0]))
    np.testing.assert_allclose(two_tied[:2, :2], [[0.25, -0.25], [-0.25, 0.25]])


def test_jacobian_keeps_the_dtype_and_its_argument():
    scores = np.array([1.0, 2.0], dtype=np.float32)
    assert softmax_jacobian(scores).dtype == np.float32
    assert scores.tolist() == [1, 2]
    assert softmax_jacobian(np.array([1, 2])).dtype == np.float64


# ---------------------------------------------------------------------------- statistics


def within(d_k):
    """Four standard deviations of the measured variance, relative; 2 / sqrt(1000 * d_k) is one."""
    return 8 / math.sqrt(1000 * d_k)


@pytest.mark.parametrize("d_k", WIDTHS)
@pytest.mark.parametrize("power", [0, -0.5, -1])
def test_variance_is_the_width_times_the_square_of_the_scale(d_k, power):
    measured = score_statistics(d_k, scale=float(d_k) ** power)
    expected = d_k ** (1 + 2 * power)
    assert measured.variance == pytest.approx(expected, rel=within(d_k))
    assert abs(measured.mean) < 0.01 * math.sqrt(expected)


@pytest.mark.parametrize("d_k", [64, 256])
def test_variance_is_within_5_percent_for_every_seed(d_k):
    for seed in range(30):
        assert score_statistics(d_k, rng=seed).variance == pytest.approx(1, rel=0.05)


def test_scale_may_be_as_large_as_a_float():
    measured = score_statistics(4, scale=sys.float_info.max, draw=lambda _, shape: np.zeros(shape))
    assert (measured.mean, measured.variance) == (0, 0)


def test_scale_is_one_over_the_root_by_default():
    assert score_statistics(7) == score_statistics(7, scale=1 / math.sqrt(7))


BROKEN = {
    # components of mean m and variance s: mean d m^2, variance d (s^2 + 2 s m^2)
    "mean 1": (lambda rng, shape: rng.normal(1, 1, shape), 64, 64 * 3),
    "uniform from 0 to 1": (lambda rng, shape: rng.random(shape), 16, 64 * (1 / 144 + 2 / 12 / 4)),
    "standard deviation 2": (lambda rng, shape: rng.normal(0, 2, shape), 0, 64 * 16),
    "signs": (lambda rng, shape: rng.choice([-1.0, 1.0], size=shape), 0, 64),
}


@pytest.mark.parametrize("name", BROKEN)
def test_components_that_are_not_standard_have_the_moments_of_the_formula(name):
    draw, mean, variance = BROKEN[name]
    measured = score_statistics(64, scale=1.0, draw=draw)
    assert measured.mean == pytest.approx(mean, abs=0.1)
    assert measured.variance == pytest.approx(variance, rel=0.1)


@pytest.mark.parametrize("dtype", [np.int8, np.float16])
def test_products_of_narrow_components_neither_wrap_nor_overflow(dtype):
    def draw(rng, shape):
        return rng.integers(-100, 100, size=shape)

    narrow = score_statistics(64, scale=1.0, draw=lambda *x: draw(*x).astype(dtype))
    assert narrow == score_statistics(64, scale=1.0, draw=draw)


def test_components_that_move_together_give_the_square_of_the_width():
    def all_equal(rng, shape):
        return np.repeat(rng.normal(size=(*shape[:-1], 1)), shape[-1], axis=-1)

    measured = score_statistics(64, scale=1.0, draw=all_equal)
    assert measured.variance == pytest.approx(64**2, rel=within(1))


def by_loops(vectors, scale, keys):
    """The same numbers from the definition, one query after the other."""
    scores, largest, norms = [], [], []
    rows = len(vectors[0])
    for i, query in enumerate(vectors[0]):
        all_scores = [scale * sum(a * b for a, b in zip(query, key, strict=True))
                      for key in vectors[1]]  # fmt: skip
        scores += all_scores
        first = keys * (i % (rows // keys))
        e = [math.exp(score) for score in all_scores[first : first + keys]]
        w = [x / sum(e) for x in e]
        largest.append(max(w))
        squares = [((w[a] if a == b else 0) - w[a] * w[b]) ** 2
                   for a in range(keys) for b in range(keys)]  # fmt: skip
        norms.append(math.sqrt(sum(squares)))
    mean = sum(scores) / len(scores)
    variance = sum((score - mean) ** 2 for score in scores) / len(scores)
    return mean, variance, sum(largest) / rows, sum(norms) / rows


def test_statistics_agree_with_loops_from_the_definition():
    vectors = np.random.default_rng(3).normal(size=(2, 15, 7))
    measured = score_statistics(7, 0.3, lambda rng, shape: vectors, rows=15, keys=5)
    np.testing.assert_allclose(measured, by_loops(vectors, 0.3, 5), rtol=1e-12)


def test_unscaled_weights_saturate_and_scaled_ones_do_not():
    unscaled = [score_statistics(d_k, scale=1.0) for d_k in (4, 64, 1024)]
    largest = [measured.largest_weight for measured in unscaled]
    norms = [measured.jacobian_norm for measured in unscaled]
    assert largest == sorted(largest)
    assert largest[-1] > 0.95
    assert norms == sorted(norms, reverse=True)
    assert norms[-1] < 0.06
    for d_k in (4, 64, 1024):
        scaled = score_statistics(d_k)
        assert 0.29 < scaled.largest_weight < 0.34
        assert 0.33 < scaled.jacobian_norm < 0.36


def test_divided_by_the_width_all_weights_become_equal():
    measured = score_statistics(1024, scale=1 / 1024)
    assert measured.largest_weight == pytest.approx(0.1, abs=0.01)
    assert measured.jacobian_norm == pytest.approx(0.3, abs=0.001)  # sqrt(10 - 1) / 10


@pytest.mark.parametrize(
    ("scale", "largest"),
    [
        (1 / math.sqrt(4), 0.69),  # N20: the root of 4 heads in place of the root of d_k = 64
        (math.sqrt(64), 0.98),  # N21: 64 ** -0.5 used as a divisor
    ],
)
def test_wrong_scales_that_were_shipped_saturate_the_softmax(scale, largest):
    wrong, right = score_statistics(64, scale), score_statistics(64)
    assert wrong.variance == pytest.approx(64 * scale**2, rel=within(64))
    assert wrong.largest_weight == pytest.approx(largest, abs=0.06)
    assert wrong.largest_weight > 2 * right.largest_weight


def test_same_seed_gives_the_same_and_a_generator_moves_on():
    assert score_statistics(7, rng=3) == score_statistics(7, rng=np.random.default_rng(3))
    assert score_statistics(7, rng=3) != score_statistics(7, rng=4)
    rng = np.random.default_rng(3)
    assert score_statistics(7, rng=rng) != score_statistics(7, rng=rng)


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d_k": 0}, "must be positive, and rows a multiple of keys; got d_k = 0"),
        ({"rows": 0}, "rows = 0, keys = 10"),
        ({"keys": 0}, "rows = 1000, keys = 0"),
        ({"keys": 7}, "a multiple of keys; got d_k = 3, rows = 1000, keys = 7"),
        ({"draw": lambda rng, shape: rng.normal(size=5)}, "shape (2, 1000, 3); got (5,)"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=r"\d") as caught:
        score_statistics(**({"d_k": 3} | change))
    assert message in str(caught.value)


@pytest.mark.refusal
@pytest.mark.parametrize("name", ["d_k", "rows", "keys"])
def test_size_that_is_no_integer_is_refused_by_its_name(name):
    with pytest.raises(TypeError, match=rf"^{name} must be an integer; got 2\.0$"):
        score_statistics(**({"d_k": 3} | {name: 2.0}))


@pytest.mark.refusal
def test_jacobian_of_a_single_number_is_refused():
    message = r"^scores must have at least one axis, \(\.\.\., k\); got a single number$"
    with pytest.raises(ValueError, match=message):
        softmax_jacobian(np.array(1.0))


@pytest.mark.refusal
def test_scores_that_are_no_real_numbers_are_refused():
    with pytest.raises(TypeError, match=r"^components must hold real numbers; got "):
        score_statistics(4, draw=lambda rng, shape: rng.standard_normal(shape) * 1j)
    with pytest.raises(TypeError, match="scores must hold real numbers; got dtype complex128"):
        softmax_jacobian(np.array([1j]))
