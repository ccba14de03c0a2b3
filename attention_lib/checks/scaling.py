"""The exercises of chapter 3, scaling: references, cases, known mistakes, hints. NumPy only."""

from functools import partial

import numpy as np

from attention_lib.checks.engine import Case, CatchFaults, Mistake, PredictValue, WriteFunction
from attention_lib.lookup import softmax
from attention_lib.scaling import softmax_jacobian

# ---------------------------------------------------------------------------- spread

WIDTH, DEVIATION = 25, 2.0


def _spread():
    """Mean 0: each product has variance s^2 * s^2, and the variances of d of them add."""
    return float(np.sqrt(WIDTH * DEVIATION**2 * DEVIATION**2))


spread = PredictValue(
    level=1,
    trains="the variance of a dot product",
    answer=_spread,
    mistakes=(
        Mistake(
            "the variance",
            "That is the variance of the dot product. The standard deviation is its root.",
            WIDTH * DEVIATION**4,
        ),
        Mistake(
            "the root of the width alone",
            "That would be right for components with standard deviation 1. How large is the "
            "typical product of two components here?",
            np.sqrt(WIDTH),
        ),
        Mistake(
            "the components' deviation counted once",
            "Queries and keys both have components with standard deviation 2, and a product has "
            "one factor of each.",
            np.sqrt(WIDTH) * DEVIATION,
        ),
        Mistake(
            "deviations added, not variances",
            "25 products do not all point the same way: they cancel in part. Variances add, "
            "deviations do not.",
            WIDTH * DEVIATION**2,
            WIDTH * DEVIATION,
        ),
        Mistake(
            "the width itself",
            "For standard components the width is the variance. These components are larger, and "
            "the question is about the standard deviation.",
            WIDTH,
        ),
        Mistake(
            "the deviation of one component",
            "The dot product is a sum of 25 products: it spreads further than a component does.",
            DEVIATION,
        ),
        Mistake(
            "divided by the root already",
            "That is the deviation after dividing by the root of 25, which is also that of a "
            "single product. The question is about the dot product itself.",
            DEVIATION**2,
        ),
        Mistake(
            "the deviation that the root brings for standard components",
            "Nothing is divided here, and these components do not have deviation 1.",
            1,
        ),
        Mistake(
            "two variances added, not multiplied",
            "4 + 4 is the variance of the sum of two components. Here they are multiplied, and "
            "both have mean 0.",
            np.sqrt(WIDTH * (DEVIATION**2 + DEVIATION**2)),
            WIDTH * (DEVIATION**2 + DEVIATION**2),
        ),
    ),
    hints=(
        "A component has variance 2 squared. First find the variance of one product of two "
        "components, then that of a sum of 25 such products.",
        "With mean 0 and independence the variance of a product is the product of the variances, "
        "here 4 times 4.",
        "Add that variance once for each of the 25 components, then take the root.",
    ),
)

# ---------------------------------------------------------------------------- scale_fault


def _score_cases():
    rng = np.random.default_rng(8)
    yield Case("width 1", np.array([[3.0]]), np.array([[2.0]]))
    yield Case("width 4", np.array([[1.0, 2, 0, 1]]), np.array([[1.0, 1, 1, 1], [2, 0, 0, 0]]))
    sizes = {
        (2, 3, 4): "fewer queries than keys",
        (5, 2, 3): "more queries than keys",
        (3, 5, 5): "as many keys as the width",
        (5, 3, 5): "as many queries as the width",
        (4, 4, 4): "all sizes equal",
        (3, 6, 16): "width 16",
        (6, 3, 7): "random vectors",
        (1, 9, 8): "one query",
    }
    for (queries, keys, width), label in sizes.items():
        yield Case(label, rng.normal(size=(queries, width)), rng.normal(size=(keys, width)))
    single = (rng.normal(size=(n, 6)).astype(np.float32) for n in (2, 5))
    yield Case("float32", *single)


def _scores(query, key, scale=lambda q, k: q.shape[1] ** -0.5):
    return query @ key.T * scale(query, key)


def _scaled(rule):
    return partial(_scores, scale=rule)


scale_fault = WriteFunction(
    level=1,
    trains="which width the divisor is the root of",
    reference=lambda query, key: _scores(query, key),
    cases=tuple(_score_cases()),
    mistakes=(
        Mistake(
            "the fault is still there: multiplied by the root",
            "d ** -0.5 is 1 / sqrt(d) already. Dividing by it multiplies by the root, and the "
            "scores grow. Use it as a factor, or divide by the root.",
            _scaled(lambda q, k: q.shape[1] ** 0.5),
        ),
        Mistake(
            "no scale",
            "These are the bare dot products: their variance grows with the width.",
            _scaled(lambda q, k: 1),
        ),
        Mistake(
            "divided by the width, not by its root",
            "The variance comes out as 1 / d, so that the weights end up nearly equal. This also "
            "happens when queries and keys are both divided by the root.",
            _scaled(lambda q, k: 1 / q.shape[1]),
        ),
        Mistake(
            "divided by the fourth root of the width",
            "Query and key each need the fourth root, or one of them the root.",
            _scaled(lambda q, k: q.shape[1] ** -0.25),
        ),
        Mistake(
            "divided by the root of the number of keys",
            "key.shape[0] counts the keys. The dot product runs over the width: the last axis.",
            _scaled(lambda q, k: len(k) ** -0.5),
        ),
        Mistake(
            "divided by the root of the number of queries",
            "len(query) counts the queries. The dot product runs over the width: the last axis.",
            _scaled(lambda q, k: len(q) ** -0.5),
        ),
        Mistake(
            "scores brought to variance 1 by their own deviation",
            "Dividing by the measured deviation makes every score depend on all others, and what "
            "training has learned to make large is made small again. The divisor is a constant.",
            lambda q, k: (q @ k.T) / (q @ k.T).std() if (q @ k.T).std() else q @ k.T,
        ),
        Mistake(
            "mean subtracted",
            "A constant per query changes no weight, so there is nothing to gain; the scores "
            "themselves are asked for.",
            lambda q, k: _scores(q, k) - _scores(q, k).mean(axis=-1, keepdims=True),
            lambda q, k: _scores(q, k) - _scores(q, k).mean(),
        ),
        Mistake(
            "queries and keys brought to length 1",
            "These are cosines, never larger than 1 in size. Scores may be larger.",
            lambda q, k: (
                (q / np.linalg.norm(q, axis=1, keepdims=True))
                @ (k / np.linalg.norm(k, axis=1, keepdims=True)).T
            ),
        ),
        Mistake(
            "weights returned",
            "These rows add to 1: a softmax was applied. Scores come before it.",
            lambda q, k: softmax(_scores(q, k)),
        ),
        Mistake(
            "one row for each key",
            "The scores are transposed: row i belongs to query i.",
            lambda q, k: _scores(q, k).T,
        ),
    ),
    hints=(
        "For width 4 the divisor must be 2. What does the published line divide by?",
        "query.shape[-1] ** -0.5 is one over the root.",
        "Dot products query @ key.T, divided by np.sqrt(query.shape[-1]).",
    ),
)

# ---------------------------------------------------------------------------- product_variance


def _product_variance(mean_a, var_a, mean_b, var_b):
    return var_a * var_b + var_a * mean_b**2 + var_b * mean_a**2


def _product_cases():
    moments = {
        (0.0, 1.0, 0.0, 1.0): "both standard",
        (0.0, 4.0, 0.0, 9.0): "both with mean 0",
        (0.0, 2.0, 3.0, 1.0): "one with mean 0",
        (3.0, 2.0, 0.0, 5.0): "the other with mean 0",
        (1.0, 1.0, 2.0, 1.0): "means 1 and 2",
        (-1.0, 2.0, 3.0, 0.5): "a negative mean",
        (2.0, 0.0, 3.0, 4.0): "a constant",
        (2.0, 3.0, 5.0, 0.0): "the other one constant",
        (0.5, 1 / 12, 0.5, 1 / 12): "uniform from 0 to 1",
        (0.3, 0.7, 1.1, 2.3): "any numbers",
    }
    for numbers, label in moments.items():
        yield Case(label, *(np.array([number]) for number in numbers))
    yield Case("several at once", *np.random.default_rng(7).uniform(0.1, 3, size=(4, 5)))


product_variance = WriteFunction(
    level=2,
    trains="the variance of a product from means and variances",
    reference=lambda mean_a, var_a, mean_b, var_b: _product_variance(mean_a, var_a, mean_b, var_b),
    cases=tuple(_product_cases()),
    mistakes=(
        Mistake(
            "product of the variances",
            "That holds where both means are 0. A mean of 5 makes b a factor of about 5, and "
            "multiplying by 5 multiplies a variance by 25.",
            lambda ma, va, mb, vb: va * vb,
        ),
        Mistake(
            "sum of the variances",
            "That is the variance of the sum a + b of independent variables. This is a product.",
            lambda ma, va, mb, vb: va + vb,
        ),
        Mistake(
            "mean of the squared product",
            "This is the mean of (ab)^2. The variance is that minus the square of the mean of ab.",
            lambda ma, va, mb, vb: (va + ma**2) * (vb + mb**2),
        ),
        Mistake(
            "each variance with its own mean",
            "The spread of a is stretched by the mean of the other factor, b.",
            lambda ma, va, mb, vb: va * vb + va * ma**2 + vb * mb**2,
        ),
        Mistake(
            "means not squared",
            "A constant factor c multiplies the variance by c squared.",
            lambda ma, va, mb, vb: va * vb + va * mb + vb * ma,
            lambda ma, va, mb, vb: va * vb + va * np.abs(mb) + vb * np.abs(ma),
        ),
        Mistake(
            "one of the two mean terms left out",
            "a is stretched by the mean of b, and b by the mean of a: there are two such terms.",
            lambda ma, va, mb, vb: va * vb + va * mb**2,
            lambda ma, va, mb, vb: va * vb + vb * ma**2,
        ),
        Mistake(
            "means added before squaring",
            "Each mean is squared alone, and multiplies the variance of the other factor.",
            lambda ma, va, mb, vb: va * vb + (ma + mb) ** 2,
            lambda ma, va, mb, vb: va * vb + (va + vb) * (ma + mb) ** 2,
        ),
        Mistake(
            "product of the variances left out",
            "The two terms with the means are there. Where both means are 0, something is left.",
            lambda ma, va, mb, vb: va * mb**2 + vb * ma**2,
        ),
        Mistake(
            "standard deviation",
            "This is the root of the variance.",
            lambda ma, va, mb, vb: _product_variance(ma, va, mb, vb) ** 0.5,
        ),
        Mistake(
            "variances taken for standard deviations",
            "The arguments are variances already: they need no square.",
            lambda ma, va, mb, vb: _product_variance(ma, va**2, mb, vb**2),
        ),
    ),
    hints=(
        "The variance of ab is the mean of a^2 b^2 minus the square of the mean of ab.",
        "For independent a and b the mean of a product is the product of the means, for a and b "
        "and for their squares. The mean of a^2 is var_a + mean_a ** 2.",
        "Multiply out (var_a + mean_a**2) * (var_b + mean_b**2) - (mean_a * mean_b)**2.",
    ),
)

# ---------------------------------------------------------------------------- jacobian


def _jacobian(weights):
    return np.diag(weights) - np.outer(weights, weights)


def _weight_cases():
    rng = np.random.default_rng(9)
    yield Case("one key", np.array([1.0]))
    yield Case("two equal weights", np.array([0.5, 0.5]))
    yield Case("two weights", np.array([0.8, 0.2]))
    yield Case("three equal weights", np.ones(3) / 3)
    yield Case("all weight on one key", np.array([0.0, 1.0, 0.0]))
    for size in 3, 4, 6:
        yield Case("random weights", softmax(rng.normal(size=size)))
    yield Case("float32", softmax(rng.normal(size=5).astype(np.float32)))


jacobian = WriteFunction(
    level=2,
    trains="the slope of the softmax as a matrix",
    reference=lambda weights: _jacobian(weights),
    cases=tuple(_weight_cases()),
    mistakes=(
        Mistake(
            "the diagonal alone, as a vector",
            "w (1 - w) says how each weight answers to its own score. A score also moves the "
            "weights of all other keys: the result is a matrix (k, k).",
            lambda w: w * (1 - w),
        ),
        Mistake(
            "the diagonal alone",
            "Off the diagonal there are numbers, too: when one score rises, the weights of the "
            "others fall. Every row must add to 0.",
            lambda w: np.diag(w * (1 - w)),
        ),
        Mistake(
            "outer product left out",
            "diag(w) is the first half. What is subtracted makes every row add to 0.",
            lambda w: np.diag(w),
        ),
        Mistake(
            "diagonal left out",
            "Only the second half is here: a weight would fall when its own score rises.",
            lambda w: -np.outer(w, w),
        ),
        Mistake(
            "outer product added",
            "A raised score takes weight from the other keys: off the diagonal the sign is minus.",
            lambda w: np.diag(w) + np.outer(w, w),
        ),
        Mistake(
            "sign turned",
            "All signs are turned: a weight rises with its own score.",
            lambda w: np.outer(w, w) - np.diag(w),
        ),
        Mistake(
            "weights taken for scores",
            "A softmax was applied to the weights once more. They are weights already.",
            softmax_jacobian,
        ),
        Mistake(
            "broadcast in place of the diagonal",
            "A weight stands in every entry, not on the diagonal only. np.diag makes a matrix of "
            "a vector.",
            lambda w: w - np.outer(w, w),
            lambda w: w[:, None] - np.outer(w, w),
        ),
        Mistake(
            "identity in place of the weights",
            "The derivative is w_i * (1 - w_j) on the diagonal, -w_i * w_j elsewhere. The first "
            "factor, w_i, is missing.",
            lambda w: np.eye(len(w)) - np.outer(w, w),
            lambda w: np.eye(len(w)) - w,
            lambda w: np.eye(len(w)) - w[:, None],
        ),
        Mistake(
            "dot product in place of the outer product",
            "weights @ weights is one number. np.outer gives all products of two weights.",
            lambda w: np.diag(w) - w @ w,
        ),
    ),
    hints=(
        "Entry (i, j) is the derivative of weight i by score j: w_i * (1 - w_i) on the diagonal, "
        "-w_i * w_j elsewhere.",
        "np.diag(weights) has the weights on its diagonal, np.outer(weights, weights) has all "
        "products of two of them.",
        "Both matrices have shape (k, k): subtract the second from the first.",
    ),
)

# ---------------------------------------------------------------------------- scale_test


def _weights(query, key, *, scale=lambda q, k: q.shape[-1] ** -0.5):
    """Attention weights with a choice of scale; tests may pass lists."""
    query, key = (np.asarray(x, dtype=float) for x in (query, key))
    with np.errstate(all="ignore"):
        return softmax(query @ key.T * scale(query, key))


def _weights_by_einsum(query, key):
    query, key = (np.asarray(x, dtype=float) for x in (query, key))
    scores = np.einsum("qd,kd->qk", query / np.sqrt(query.shape[-1]), key)
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _weights_by_logarithms(query, key):
    query, key = (np.asarray(x, dtype=float) for x in (query, key))
    scores = query @ key.T / query.shape[-1] ** 0.5
    return np.exp(scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True))


class _RootOfFirstWidth:
    """Divides by the root of the first width that it meets. Every test gets a fresh copy of it."""

    width = None

    def __call__(self, query, key):
        self.width = self.width or np.shape(query)[-1]
        return _weights(query, key, scale=lambda q, k: self.width**-0.5)


def _vectors(length, keys, width):
    rng = np.random.default_rng(10)
    return rng.normal(size=(length, width)), rng.normal(size=(keys, width))


USUAL, WIDTH_ONE, WIDTH_FOUR = _vectors(3, 5, 7), _vectors(3, 5, 1), _vectors(3, 5, 4)
WIDTH_64 = _vectors(3, 5, 64)
KEYS_AS_WIDTH = _vectors(3, 7, 7), _vectors(3, 6, 6)
QUERIES_AS_WIDTH = _vectors(7, 5, 7), _vectors(6, 5, 6)
SQUARE = _vectors(7, 7, 7), _vectors(6, 6, 6)


def _compare(*inputs):
    """A test that compares weights with the right ones on these inputs."""

    def test(weights):
        for query, key in inputs:
            np.testing.assert_allclose(weights(query, key), _weights(query, key), rtol=1e-6)

    return test


def _enlarged(factor, *widths):
    """Inputs so large that one key takes nearly all the weight."""
    return [tuple(factor * x for x in _vectors(3, 5, width)) for width in widths]


def _compare_closely(*inputs):
    """A test that takes weights near 0 for equal."""

    def test(weights):
        for query, key in inputs:
            assert np.allclose(weights(query, key), _weights(query, key))

    return test


def _compare_places(weights):
    query, key = USUAL
    assert (np.argmax(weights(query, key), axis=-1) == (query @ key.T).argmax(axis=-1)).all()


def _compare_sums(weights):
    assert np.allclose(np.sum(weights(*USUAL), axis=-1), 1)


def _compare_shapes(weights):
    assert np.shape(weights(*USUAL)) == (3, 5)


def _compare_with_itself(weights):
    np.testing.assert_allclose(weights(*USUAL), weights(*USUAL))


def _compare_doubled(weights):
    """Every component twice: the scores grow by the root of 2. True of any constant times it."""
    query, key = USUAL
    twice = (np.concatenate([x, x], axis=-1) for x in (query, key))
    np.testing.assert_allclose(weights(*twice), weights(2**0.5 * query, key))


scale_test = CatchFaults(
    level=3,
    trains="a test that tells one divisor from another",
    right={
        "in NumPy": _weights,
        "with einsum, queries divided first": _weights_by_einsum,
        "through logarithms": _weights_by_logarithms,
    },
    faults=(
        Mistake(
            "no scale",
            "Compare numbers for a width larger than 1.",
            partial(_weights, scale=lambda q, k: 1),
        ),
        Mistake(
            "divided by the width",
            "Compare numbers for a width larger than 1.",
            partial(_weights, scale=lambda q, k: 1 / q.shape[-1]),
        ),
        Mistake(
            "multiplied by the root",
            "Compare numbers for a width larger than 1.",
            partial(_weights, scale=lambda q, k: q.shape[-1] ** 0.5),
        ),
        Mistake(
            "divided by the root of 4 heads",
            "This divides by 2, whatever the width. Use another width than 4.",
            partial(_weights, scale=lambda q, k: 4**-0.5),
        ),
        Mistake(
            "divided by 8, whatever the width",
            "8 is right for width 64 only. Use other widths, more than one.",
            partial(_weights, scale=lambda q, k: 1 / 8),
        ),
        Mistake(
            "divided by the root of the number of keys",
            "Give the function another number of keys than the width.",
            partial(_weights, scale=lambda q, k: len(k) ** -0.5),
        ),
        Mistake(
            "divided by the root of the number of queries",
            "Give the function another number of queries than the width.",
            partial(_weights, scale=lambda q, k: len(q) ** -0.5),
        ),
        Mistake(
            "divided by the root of the first width that it met",
            "With one width only, nobody can tell a constant from a root. Use two widths.",
            _RootOfFirstWidth(),
        ),
        Mistake(
            "divided by the root of three times the width",
            "A factor too much for every width. Compare the weights themselves with numbers.",
            partial(_weights, scale=lambda q, k: (3 * q.shape[-1]) ** -0.5),
        ),
    ),
    mistakes=(
        Mistake(
            "an assertion that no fault breaks",
            "Every fault passes. A wrong scale changes neither the shape, nor the sums of the "
            "rows, nor which key has the largest weight: a demo that only looks at the winner hid "
            "such a fault. Compare the weights with numbers that you worked out, for inputs of "
            "ordinary size: large ones make the softmax one-hot at any scale.",
            _compare_places,
            _compare_sums,
            _compare_shapes,
            _compare_with_itself,
        ),
        Mistake(
            "sharper weights pass",
            "All faults pass that make the largest weight larger. With inputs so large that the "
            "softmax is one-hot, one key takes all the weight at any scale: use inputs of ordinary "
            "size. A bound from below sees as little: compare numbers.",
            _compare_closely(*_enlarged(15, 6, 10)),
            _compare_closely(*_enlarged(20, 6, 10)),
            _compare_closely(*_enlarged(20, 8, 16)),
        ),
        Mistake(
            "width 1",
            "1, its root and its square are one number, so most wrong scales pass. Use a larger "
            "width.",
            _compare(WIDTH_ONE),
        ),
        Mistake(
            "width 4",
            "The root of 4 is 2, which a function that divides by the root of 4 heads uses for "
            "every width. Use another width.",
            _compare(WIDTH_FOUR),
        ),
        Mistake(
            "width 64",
            "The root of 64 is 8, which a function that always divides by 8 gets right. Use other "
            "widths, more than one.",
            _compare(WIDTH_64),
        ),
        Mistake(
            "as many keys as the width",
            "Then the root of the number of keys is right by luck. Make all sizes different.",
            _compare(*KEYS_AS_WIDTH),
            _compare(KEYS_AS_WIDTH[0]),
        ),
        Mistake(
            "as many queries as the width",
            "Then the root of the number of queries is right by luck. Make all sizes different.",
            _compare(*QUERIES_AS_WIDTH),
            _compare(QUERIES_AS_WIDTH[0]),
        ),
        Mistake(
            "all sizes equal",
            "Then nobody can tell which size the divisor is taken from. Make all sizes different.",
            _compare(*SQUARE),
            _compare(SQUARE[0]),
        ),
        Mistake(
            "only one width counts",
            "A function that keeps the root of your first width for all others passes. Compare "
            "numbers for a second width, with components of ordinary size: where they are very "
            "large, one weight is 1 whatever the scale.",
            _compare(USUAL),
        ),
        Mistake(
            "a factor that is too much for every width passes",
            "A comparison of the function with itself does not show it, nor does a loose bound. "
            "Compare the weights with numbers that you worked out.",
            _compare_doubled,
        ),
    ),
    hints=(
        "Which of these survive a wrong scale: the shape, the sum of a row, the place of the "
        "largest weight, the weights themselves?",
        "Choose different sizes for queries, keys and width, none of them 1, and two widths. The "
        "widths 4 and 64 have roots that some function uses as a constant.",
        "Compute softmax(query @ key.T / np.sqrt(width)) in the test, and compare with "
        "np.allclose.",
    ),
)

EXERCISES = {
    "spread": spread,
    "scale_fault": scale_fault,
    "product_variance": product_variance,
    "jacobian": jacobian,
    "scale_test": scale_test,
}
