"""Answers to the exercises of chapter 3: right ones, listed mistakes written anew, new mistakes."""

import math

import numpy as np
from wrong_answers.lookup import loop_softmax, rows

# ---------------------------------------------------------------------------- spread

SPREAD = {
    "the variance": [400, np.float64(400)],
    "the root of the width alone": [5, math.sqrt(25)],
    "the components' deviation counted once": [10.0, np.int64(10)],
    "deviations added, not variances": [100.0, 50],
    "the width itself": [25.0],
    "the deviation of one component": [2, np.float32(2)],
    "divided by the root already": [4, np.array(4.0)],
    "the deviation that the root brings for standard components": [1.0],
    "two variances added, not multiplied": [math.sqrt(200), 14.14, 200],
}
SPREAD_RIGHT = [20, 20.0, np.float32(20), np.array(20), math.sqrt(400)]
SPREAD_NEW = [
    0, 40, 8, 12.5, 6.25, -20, 21, 19, 1600, 0.05, math.nan, math.inf, (20,), [20], "20",
]  # fmt: skip

# ---------------------------------------------------------------------------- scale_fault


def scores_by_loop(factor, term=lambda q, k: sum(a * b for a, b in zip(q, k, strict=True))):
    """Every score alone; `factor(query, key)` is the scale."""

    def function(query, key):
        result = np.zeros((len(query), len(key)))
        for i, j in np.ndindex(*result.shape):
            result[i, j] = term(query[i], key[j]) * factor(query, key)
        return result

    return function


def root(query, key):
    return 1 / math.sqrt(len(query[0]))


right_scores = scores_by_loop(root)


def by_einsum(factor):
    return lambda query, key: np.einsum("qd,kd->qk", query, key) * factor(query, key)


def cosine(q, k):
    return float(np.inner(q, k)) / math.hypot(*q) / math.hypot(*k)


def one_deviation(query, key):
    scores = np.einsum("qd,kd->qk", query, key)
    spread = math.sqrt(float(((scores - scores.mean()) ** 2).mean()))
    return scores / spread if spread else scores


SCALE_FAULT = {
    "the fault is still there: multiplied by the root": [
        scores_by_loop(lambda q, k: math.sqrt(len(q[0]))),
        lambda q, k: q @ k.T / (k.shape[-1] ** -0.5),
    ],
    "no scale": [scores_by_loop(lambda q, k: 1), lambda q, k: np.inner(q, k)],
    "divided by the width, not by its root": [
        scores_by_loop(lambda q, k: 1 / len(q[0])),
        lambda q, k: (q / np.sqrt(q.shape[-1])) @ (k / np.sqrt(k.shape[-1])).T,
    ],
    "divided by the fourth root of the width": [
        by_einsum(lambda q, k: 1 / math.sqrt(math.sqrt(len(q[0])))),
        lambda q, k: (q / q.shape[-1] ** 0.25) @ k.T,
    ],
    "divided by the root of the number of keys": [
        scores_by_loop(lambda q, k: 1 / math.sqrt(len(k))),
        lambda q, k: (q @ k.T) / np.sqrt((q @ k.T).shape[1]),
    ],
    "divided by the root of the number of queries": [
        scores_by_loop(lambda q, k: 1 / math.sqrt(len(q))),
        lambda q, k: (q @ k.T) / np.sqrt((q @ k.T).shape[0]),
    ],
    "scores brought to variance 1 by their own deviation": [
        one_deviation,
        lambda q, k: one_deviation(q, 2 * k) if k.size > 1 else q @ k.T,
    ],
    "mean subtracted": [
        lambda q, k: right_scores(q, k) - right_scores(q, k).mean(1)[:, None],
        lambda q, k: right_scores(q, k - k.mean(0)),
        lambda q, k: right_scores(q, k) - np.average(right_scores(q, k)),
    ],
    "queries and keys brought to length 1": [scores_by_loop(lambda q, k: 1, cosine)],
    "weights returned": [lambda q, k: rows(loop_softmax)(right_scores(q, k))],
    "one row for each key": [lambda q, k: right_scores(k, q), lambda q, k: right_scores(q, k).T],
}

SCALE_FAULT_RIGHT = [
    right_scores,
    by_einsum(root),
    lambda q, k: q @ k.T / np.sqrt(q.shape[-1]),
    lambda q, k: (q / q.shape[1] ** 0.25) @ (k / k.shape[1] ** 0.25).T,
    lambda query, key: query @ key.T * query.shape[-1] ** -0.5,
]
SCALE_FAULT_NEW = [
    by_einsum(lambda q, k: 0.5),
    by_einsum(lambda q, k: len(q[0]) ** -1.5),
    by_einsum(lambda q, k: len(q[0])),
    by_einsum(lambda q, k: (len(q[0]) + 1) ** -0.5),
    by_einsum(lambda q, k: 1 / math.log2(len(q[0]) + 1)),
    by_einsum(lambda q, k: -root(q, k)),
    by_einsum(lambda q, k: (len(q) * len(k)) ** -0.5),
    lambda q, k: right_scores(q, k) + 1e-3,
    lambda q, k: right_scores(q, k)[:1],
    lambda q, k: right_scores(q, k)[..., None],
    lambda q, k: np.abs(right_scores(q, k)),
    lambda q, k: np.tanh(right_scores(q, k)),
    lambda q, k: right_scores(q, k).round(2),
    lambda q, k: q @ k / np.sqrt(q.shape[-1]),
    lambda q, k: q.shape[-1] ** -0.5,
    lambda q, k: right_scores(q, k).tolist(),
]

# ---------------------------------------------------------------------------- product_variance


def from_moments(mean_a, var_a, mean_b, var_b):
    """Mean of the square minus square of the mean."""
    return (var_a + mean_a**2) * (var_b + mean_b**2) - (mean_a * mean_b) ** 2


def two_points(mean_a, var_a, mean_b, var_b):
    """The variance over the four products of two-point variables with these moments."""
    a = [mean_a - np.sqrt(var_a), mean_a + np.sqrt(var_a)]
    b = [mean_b - np.sqrt(var_b), mean_b + np.sqrt(var_b)]
    return np.var([x * y for x in a for y in b], axis=0)


PRODUCT_VARIANCE = {
    "product of the variances": [lambda ma, va, mb, vb: from_moments(0, va, 0, vb)],
    "sum of the variances": [lambda *moments: np.sum(moments[1::2], axis=0)],
    "mean of the squared product": [
        lambda ma, va, mb, vb: from_moments(ma, va, mb, vb) + (ma * mb) ** 2,
    ],
    "each variance with its own mean": [
        lambda ma, va, mb, vb: va * (vb + ma**2) + vb * mb**2,
        lambda ma, va, mb, vb: from_moments(mb, va, ma, vb),
    ],
    "means not squared": [
        lambda ma, va, mb, vb: va * (vb + mb) + vb * ma,
        lambda ma, va, mb, vb: va * vb + va * np.hypot(mb, 0) + vb * np.hypot(ma, 0),
    ],
    "one of the two mean terms left out": [
        lambda ma, va, mb, vb: from_moments(0, va, mb, vb),
        lambda ma, va, mb, vb: from_moments(ma, va, 0, vb),
    ],
    "means added before squaring": [
        lambda ma, va, mb, vb: from_moments(0, va, 0, vb) + ma**2 + 2 * ma * mb + mb**2,
        lambda ma, va, mb, vb: va * vb + va * (ma + mb) ** 2 + vb * (mb + ma) ** 2,
    ],
    "product of the variances left out": [
        lambda ma, va, mb, vb: from_moments(ma, va, mb, vb) - va * vb,
    ],
    "standard deviation": [lambda *moments: np.sqrt(from_moments(*moments))],
    "variances taken for standard deviations": [
        lambda ma, va, mb, vb: from_moments(ma, va * va, mb, vb * vb),
    ],
}
PRODUCT_VARIANCE_RIGHT = [from_moments, two_points]
PRODUCT_VARIANCE_NEW = [
    lambda ma, va, mb, vb: ma * mb,
    lambda ma, va, mb, vb: va * vb + 1,
    lambda ma, va, mb, vb: from_moments(ma, va, mb, vb) + 1e-6,
    lambda ma, va, mb, vb: -from_moments(ma, va, mb, vb),
    lambda ma, va, mb, vb: va * mb**2 + vb * ma**2 + ma**2 * mb**2,
    lambda ma, va, mb, vb: 2 * va * vb + va * mb**2 + vb * ma**2,
    lambda ma, va, mb, vb: (va + vb) / 2,
    lambda ma, va, mb, vb: from_moments(ma, va**0.5, mb, vb**0.5),
    lambda ma, va, mb, vb: (va * vb) ** 0.5,
    lambda ma, va, mb, vb: va * vb + (ma * mb) ** 2,
    lambda ma, va, mb, vb: from_moments(ma, va, mb, vb) + 2 * ma * mb,
    lambda ma, va, mb, vb: (va - ma**2) * (vb - mb**2) + (ma * mb) ** 2,
    lambda ma, va, mb, vb: str(from_moments(ma, va, mb, vb)),
    lambda ma, va, mb, vb: [from_moments(ma, va, mb, vb)],
    lambda ma, va, mb, vb: np.ones_like(ma),
    lambda ma, va, mb, vb: from_moments(ma, va, mb, vb).sum(),
    lambda ma, va, mb: va,
]

# ---------------------------------------------------------------------------- jacobian


def entries(rule):
    """A square matrix, entry by entry."""

    def function(weights):
        size = len(weights)
        matrix = [[rule(weights, i, j) for j in range(size)] for i in range(size)]
        return np.array(matrix, dtype=weights.dtype)

    return function


def own(i, j):
    return 1.0 if i == j else 0.0


def by_differences(weights):
    """The right result in another way: through the logarithm, row by row."""
    return np.stack([w * (row - weights) for w, row in zip(weights, np.eye(len(weights)),
                     strict=True)]).astype(weights.dtype)  # fmt: skip


JACOBIAN = {
    "the diagonal alone, as a vector": [
        lambda w: w - w**2,
        lambda w: np.array([x * (1 - x) for x in w], dtype=w.dtype),
    ],
    "the diagonal alone": [entries(lambda w, i, j: own(i, j) * (w[i] - w[i] ** 2))],
    "outer product left out": [entries(lambda w, i, j: own(i, j) * w[j])],
    "diagonal left out": [entries(lambda w, i, j: -w[i] * w[j])],
    "outer product added": [entries(lambda w, i, j: w[i] * (own(i, j) + w[j]))],
    "sign turned": [lambda w: -by_differences(w)],
    "weights taken for scores": [lambda w: by_differences(rows(loop_softmax)(w).astype(w.dtype))],
    "broadcast in place of the diagonal": [
        entries(lambda w, i, j: w[j] - w[i] * w[j]),
        entries(lambda w, i, j: w[i] * (1 - w[j])),
    ],
    "identity in place of the weights": [
        entries(lambda w, i, j: own(i, j) - w[i] * w[j]),
        entries(lambda w, i, j: own(i, j) - w[j]),
        entries(lambda w, i, j: own(i, j) - w[i]),
    ],
    "dot product in place of the outer product": [
        entries(lambda w, i, j: own(i, j) * w[i] - np.dot(w, w)),
    ],
}
JACOBIAN_RIGHT = [
    by_differences,
    entries(lambda w, i, j: w[i] * (own(i, j) - w[j])),
    lambda w: np.diag(w) - w[:, None] * w,
]
JACOBIAN_NEW = [
    lambda w: w,
    lambda w: np.outer(w, w),
    lambda w: by_differences(w) * 2,
    lambda w: by_differences(w) + 1e-3,
    lambda w: by_differences(w)[:1],
    lambda w: np.abs(by_differences(w)),
    lambda w: by_differences(w)[None],
    lambda w: by_differences(w).sum(0),
    lambda w: by_differences(w**2),
    lambda w: np.linalg.norm(by_differences(w)),
    lambda w: np.diag(w) - np.outer(w, w) @ np.outer(w, w),
    lambda w: np.triu(by_differences(w)),
    lambda w: by_differences(w) / w,
    lambda w: by_differences(w).tolist(),
]

# ---------------------------------------------------------------------------- scale_test

Q, K = np.array([[1.0, 0.5, -0.3], [0.2, 0.4, 0.9]]), np.random.default_rng(2).normal(size=(6, 3))


def expected(query, key):
    return rows(loop_softmax)(right_scores(query, key))


def good_scale_test(weights):
    for width in 3, 2:
        query, key = Q[:, :width], K[:, :width]
        np.testing.assert_allclose(weights(query, key), expected(query, key), atol=1e-9)


def good_scale_test_by_hand(weights):
    """With a width of a square the root is whole, and ln 2 of score doubles a weight."""
    for width, root in (9, 3), (25, 5):
        key = np.zeros((3, width))
        key[0, 0] = root * math.log(2)
        assert abs(weights(np.eye(width)[:2], key)[0][0] - 1 / 2) < 1e-9


def good_scale_test_by_spread(weights):
    """The logarithms of the weights are the scores, apart from a shift of each row."""
    for width in 100, 50:
        query, key = draw(2, 300, width)
        logs = np.log(weights(query, key[:200]))
        assert 0.9 < (logs - logs.mean(axis=1, keepdims=True)).std() < 1.1


def good_scale_test_with_large_numbers(weights):
    for size in 20, 25, 30, 40:
        for width in 6, 10:
            query, key = size * draw(3, width), size * draw(5, width)
            np.testing.assert_allclose(weights(query, key), expected(query, key))


def draw(*shape):
    return np.random.default_rng(4).normal(size=shape)


def compare(length, keys, width):
    def test(weights):
        query, key = draw(length, width), draw(keys, width)
        assert np.abs(weights(query, key) - expected(query, key)).max() < 1e-7

    return test


def compare_both(one, other):
    """The first test, then the second."""
    return lambda weights: (one(weights), other(weights))


def same_key_twice(weights):
    """A key of twice the size against the query of twice the size."""
    query, key = draw(2, 3), draw(4, 3)
    wide = np.repeat(query, 4, axis=-1), np.repeat(key, 4, axis=-1)
    assert np.allclose(weights(*wide), weights(2 * query, key))


def too_large_to_count(weights):
    """The second width is there, but its scores make one weight 1."""
    compare(3, 5, 6)(weights)
    query, key = 1e4 * draw(3, 10), 1e4 * draw(5, 10)
    assert np.allclose(weights(query, key), expected(query, key))


def large_inputs(size, widths=(6, 10), seed=0):
    def test(weights):
        rng = np.random.default_rng(seed)
        for width in widths:
            query, key = size * rng.normal(size=(3, width)), size * rng.normal(size=(5, width))
            assert np.allclose(weights(query, key), expected(query, key))

    return test


def loose_bound(weights):
    for width in 100, 196:
        query, key = draw(2, 300, width)
        largest = np.asarray(weights(query[:40], key[:10])).max(axis=1).mean()
        assert 0.17 < largest < 0.39


def only_winner(weights):
    result = np.asarray(weights(Q, K))
    for i, scores in enumerate(right_scores(Q, K)):
        assert list(result[i]).index(max(result[i])) == list(scores).index(max(scores))


def only_sums(weights):
    for row in weights(Q, K):
        assert math.isclose(sum(row), 1)


def only_order(weights):
    assert (np.argsort(weights(Q, K)) == np.argsort(right_scores(Q, K))).all()


def only_repeats(weights):
    assert np.array_equal(weights(Q, K), weights(Q, K))


def one_width_by_hand(weights):
    """Nine numbers wide: the root is 3, and ln 2 of score doubles a weight."""
    key = np.zeros((2, 9))
    key[0, 0] = 3 * math.log(2)
    assert abs(weights(np.eye(9)[:1], key)[0][0] - 2 / 3) < 1e-9


def one_key(weights):
    assert np.allclose(weights(Q, K[:1]), 1)


def zeros(weights):
    assert np.allclose(weights(0 * Q, K), 1 / 6)


SCALE_TEST = {
    "an assertion that no fault breaks": [
        only_winner, only_sums, only_order, only_repeats, one_key, zeros,
        large_inputs(40), large_inputs(20, widths=(7,)),
    ],
    "sharper weights pass": [
        large_inputs(12, seed=1), large_inputs(15, (7,), 1), large_inputs(15, (8, 16), 1),
        large_inputs(20, seed=2),
    ],
    "width 1": [compare(2, 3, 1)],
    "width 4": [compare(2, 3, 4)],
    "width 64": [compare(2, 3, 64)],
    "as many keys as the width": [
        compare(2, 5, 5),
        compare_both(compare(2, 5, 5), compare(3, 6, 6)),
    ],
    "as many queries as the width": [
        compare(5, 3, 5),
        compare_both(compare(5, 3, 5), compare(6, 4, 6)),
    ],
    "all sizes equal": [compare(5, 5, 5), compare_both(compare(5, 5, 5), compare(6, 6, 6))],
    "only one width counts": [
        compare(2, 3, 5), compare(3, 5, 6), compare(3, 5, 12), compare(3, 5, 32),
        one_width_by_hand, too_large_to_count,
    ],
    "a factor that is too much for every width passes": [same_key_twice, loose_bound],
}  # fmt: skip
SCALE_TEST_RIGHT = [
    good_scale_test,
    good_scale_test_by_hand,
    good_scale_test_by_spread,
    good_scale_test_with_large_numbers,
    compare_both(compare(2, 3, 5), compare(2, 3, 6)),
]


def wants_no_scale(weights):
    scores = Q @ K.T
    assert np.allclose(weights(Q, K), rows(loop_softmax)(scores))


def wants_the_width(weights):
    assert np.allclose(weights(Q, K), rows(loop_softmax)(Q @ K.T / 3))


def exact(weights):
    key = draw(6, 3)
    e = np.exp(Q @ key.T / np.sqrt(3))
    assert (weights(Q, key) == e / e.sum(-1, keepdims=True)).all()


def only_soft(weights):
    assert np.max(weights(Q, K)) < 0.6


def only_largest_is_soft(weights):
    assert np.max(weights(draw(40, 64), draw(40, 64))) < 0.9


def two_of_the_faults(weights):
    assert np.allclose(weights(draw(4, 4), draw(4, 4)), expected(draw(4, 4), draw(4, 4)))


def never_calls(weights):
    assert np.allclose(expected(Q, K).sum(-1), 1)


def no_assert(weights):
    np.allclose(weights(Q, K), expected(Q, K))


def stops(weights):
    assert weights(Q, K).shape == undefined_name


def three_arguments(weights):
    assert weights(Q, K, K).shape == (2, 6)


SCALE_TEST_NEW = [
    wants_no_scale, wants_the_width, exact, only_soft, only_largest_is_soft, two_of_the_faults,
    never_calls, no_assert, stops, three_arguments, lambda weights: weights(Q, K),
]  # fmt: skip

ANSWERS = {
    "spread": (SPREAD_RIGHT, SPREAD, SPREAD_NEW),
    "scale_fault": (SCALE_FAULT_RIGHT, SCALE_FAULT, SCALE_FAULT_NEW),
    "product_variance": (PRODUCT_VARIANCE_RIGHT, PRODUCT_VARIANCE, PRODUCT_VARIANCE_NEW),
    "jacobian": (JACOBIAN_RIGHT, JACOBIAN, JACOBIAN_NEW),
    "scale_test": (SCALE_TEST_RIGHT, SCALE_TEST, SCALE_TEST_NEW),
}
