"""The exercises of chapter 1, lookup: references, cases, known mistakes, hints. NumPy only."""

import numpy as np

from attention_lib.checks.engine import Case, CatchFaults, Mistake, PredictValue, WriteFunction
from attention_lib.lookup import nearest_lookup, soft_lookup, softmax

# ---------------------------------------------------------------------------- tie

# Two keys are equally near to the query, the third is far away. The chapter shows these numbers.
TIE_QUERY = np.array([1.0, 1.0])
TIE_KEYS = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
TIE_VALUES = np.array([10.0, 20.0, 90.0])

tie = PredictValue(
    level=1,
    trains="softmax when two keys tie and the temperature falls",
    answer=lambda: float(soft_lookup(TIE_QUERY, TIE_KEYS, TIE_VALUES, temperature=1e-6)),
    mistakes=(
        Mistake(
            "the first of the tied keys wins",
            "That is argmax, which takes the first of equal scores. Softmax looks at the scores "
            "alone: what weights does it give to two keys with the same score?",
            10,
        ),
        Mistake(
            "the last of the tied keys wins",
            "A dict keeps the value stored last, but softmax knows no order: two keys with the "
            "same score get the same weight, at every temperature.",
            20,
        ),
        Mistake(
            "the sum of the tied values",
            "Both tied values come back, but not whole: the weights of all keys add to 1, so two "
            "equal weights cannot be 1 each.",
            30,
        ),
        Mistake(
            "weights that add to more than 1",
            "All three values come back, with weights that add to 3 or to 1.5. The weights of all "
            "keys add to 1, and the far key is not one of the best.",
            120,
            60,
        ),
        Mistake(
            "the result at temperature 1",
            "At temperature 1 the far key still has some weight. How much is left of it as the "
            "temperature goes to 0?",
            float(soft_lookup(TIE_QUERY, TIE_KEYS, TIE_VALUES)),
        ),
        Mistake(
            "the plain mean of all values",
            "All keys weigh the same when the temperature goes to infinity. Towards 0 the "
            "far key loses its weight. Which keys are left?",
            40,
        ),
        Mistake(
            "the largest value wins",
            "The keys compete by their scores, not by their values. The third key has the largest "
            "value and the smallest dot product with the query.",
            90,
        ),
        Mistake(
            "dividing by zero",
            "The temperature comes as near to 0 as we like but never is 0. Scores "
            "divided by it grow, their differences too; the softmax of such scores is defined.",
            float("nan"),
            0,
            float("inf"),
        ),
    ),
    hints=(
        "Compute the three dot products first. Which keys are equally near?",
        "Softmax sees differences of scores only. Dividing by a small temperature makes every "
        "difference large, except one: which difference stays 0?",
        "Equal scores get equal weights, and the weights add to 1. The far key has weight 0.",
    ),
)

# ---------------------------------------------------------------------------- softmax


def _softmax_cases():
    rng = np.random.default_rng(1)
    yield Case("one key", np.array([3.0]))
    yield Case("two keys", np.array([1.0, 2.0]))
    yield Case("ties", np.array([2.0, 2.0, -1.0]))
    yield Case("integer scores", np.array([1, 2, 4]))
    yield Case("a column", np.array([[1.0], [2.0], [4.0]]))
    yield Case("two rows", np.array([[1.0, 2.0, 4.0], [0.5, 0.0, -1.0]]))
    yield Case("as many rows as keys", np.array([[1.0, 2.0], [4.0, 0.0]]))
    yield Case("float32", np.array([[0.0, 1.0, 3.0], [2.0, -1.0, 0.0]], dtype=np.float32))
    yield Case("three axes", rng.normal(size=(2, 3, 4)).round(1))
    yield Case("four axes", rng.normal(size=(2, 1, 3, 2)).round(1))
    for shape in (5,), (4, 3), (3, 4), (4, 4), (3, 3, 3), (2, 5, 2):
        yield Case("random scores", (2 * rng.normal(size=shape)).round(1))
    yield Case("large scores (overflow)", np.array([1000.0, 999.0]), extreme=True)
    yield Case("very negative scores", np.array([-1000.0, -1001.0]), extreme=True)
    yield Case("large last score", np.array([0.0, 1000.0]), extreme=True)
    yield Case("large first score", np.array([2000.0, 0.0, 0.0, 0.0]), extreme=True)
    rows_apart = np.array([[0.0, 1.0], [-2000.0, -2001.0]])
    yield Case("rows far apart", rows_apart, extreme=True)
    yield Case("float32 (overflow)", np.array([90.0, 89.0, 0.0], dtype=np.float32), extreme=True)
    yield Case("very negative float32", np.array([-110.0, -110.0], dtype=np.float32), extreme=True)
    yield Case("only the sum overflows", np.array([709.5, 709.5]), extreme=True)


def _exp(x):
    return np.exp(x - x.max(axis=-1, keepdims=True))


def _normal(x, axis=-1):
    return x / x.sum(axis=axis, keepdims=True)


def _unstable(x, axis=-1):
    return _normal(np.exp(x), axis)


def _one_hot(x):
    return np.eye(x.shape[-1])[x.argmax(axis=-1)]


def _all_largest(x):
    return (x == x.max(axis=-1, keepdims=True)).astype(float)


def _shifted(shift):
    """A softmax that takes another number than the maximum from the scores of a row."""
    return lambda x: _unstable(x - shift(x))


SHIFTS = (
    lambda x: x.min(axis=-1, keepdims=True),
    lambda x: x.mean(axis=-1, keepdims=True),
    lambda x: np.median(x, axis=-1, keepdims=True),
    lambda x: x[..., :1],
    lambda x: x[..., -1:],
    lambda x: np.abs(x).max(axis=-1, keepdims=True),
    lambda x: x.sum(axis=-1, keepdims=True),
    lambda x: 100,
    lambda x: x.min(),
    lambda x: x.mean(),
)


def _in_float64(function):
    return lambda x: function(x.astype(float))


def _repaired(naive):
    """Answers that compute the naive formula first and look for NaN afterwards."""
    yield lambda x: np.nan_to_num(naive(x))
    yield lambda x: np.nan_to_num(naive(x), nan=1)
    yield lambda x: np.nan_to_num(naive(x), nan=1 / x.shape[-1])
    yield lambda x: np.nan_to_num(np.exp(x)) / np.nan_to_num(np.exp(x).sum(-1, keepdims=True))
    yield lambda x: softmax(x) if np.isnan(naive(x)).any() else naive(x)


def _clipped(bound, normalise, least=True):
    """A softmax of scores that are cut off at a bound, on both sides or above only."""
    return lambda x: normalise(np.clip(x, -bound if least else None, bound))


def _above(limit, size=lambda x: np.abs(x).max()):
    """A softmax that is stable for large scores only."""
    return lambda x: softmax(x) if size(x) > limit else _unstable(x)


def _with_epsilon(epsilon):
    return lambda x: _exp(x) / (_exp(x).sum(axis=-1, keepdims=True) + epsilon)


def _integer_result(x):
    result = np.zeros_like(x)
    result[...] = softmax(x)
    return result


OVERFLOW = Mistake(
    "no maximum subtracted",
    "np.exp overflows above about 709, and inf / inf is NaN. Far below 0 all exponentials are 0, "
    "and 0 / 0 is NaN. The weights depend on differences of scores only: which number can you "
    "take from every score of a row so that none is left above 0?",
    _unstable,
    lambda x: np.exp(x - np.log(np.exp(x).sum(axis=-1, keepdims=True))),
    lambda x: _unstable(x.astype(float)),
)
FIRST_AXIS = Mistake(
    "softmax over the first axis",
    "Each column adds to 1, not each row. The keys lie along the last axis, and the keys compete.",
    lambda x: softmax(x, axis=0),
    lambda x: _normal(_exp(x), axis=0),
)
ALL_ENTRIES = Mistake(
    "softmax over all entries at once",
    "All rows together add to 1. Every query shares out its own weight of 1 among the "
    "keys: sum along the last axis only, and keep that axis (keepdims).",
    lambda x: softmax(x.ravel()).reshape(x.shape),
)
NOT_DIVIDED = Mistake(
    "not divided by the sum",
    "The exponentials are there, but they do not add to 1 yet. What turns positive numbers into "
    "shares of a whole?",
    _exp,
    np.exp,
    lambda x: np.exp(x.astype(float)),
)
HARD_ARGMAX = Mistake(
    "argmax in place of softmax",
    "The best key gets all the weight. That is the limit at temperature 0; softmax leaves "
    "some weight to every key, by the exponential of its score.",
    _one_hot,
    _all_largest,
    lambda x: _normal(_all_largest(x)),
)
NO_EXPONENTIAL = Mistake(
    "scores divided by their sum",
    "Without the exponential a negative score gives a negative weight, and scores that add "
    "to 0 give a division by 0. Make the scores positive first.",
    _normal,
)

my_softmax = WriteFunction(
    level=2,
    trains="a stable softmax over the last axis",
    reference=lambda scores: softmax(scores),
    cases=tuple(_softmax_cases()),
    mistakes=(
        OVERFLOW,
        FIRST_AXIS,
        ALL_ENTRIES,
        Mistake(
            "another number than the maximum subtracted",
            "A score far above that number still overflows, and scores far below it can make all "
            "exponentials 0. With the maximum of the row the largest exponential is exactly 1.",
            *map(_shifted, SHIFTS),
            *(_in_float64(_shifted(shift)) for shift in SHIFTS),
        ),
        Mistake(
            "the maximum subtracted for large scores only",
            "float32 overflows above 88 already, and a sum can overflow where none of its terms "
            "does. Subtract each row's maximum always: it changes no weight.",
            *map(_above, (700, 709, 500, 300)),
            *(_above(limit, np.max) for limit in (700, 709, 500, 300)),
        ),
        Mistake(
            "scores clipped",
            "Scores beyond the bound become equal, so their weights do, too: [1000, 999] has the "
            "weights [0.73, 0.27], not [0.5, 0.5]. Subtract each row's maximum instead.",
            *(
                _clipped(bound, normalise, least)
                for bound in (10, 20, 50, 80, 88, 100, 300, 500, 700, 709)
                for normalise in (softmax, _unstable, _in_float64(_unstable))
                for least in (True, False)
            ),
        ),
        Mistake(
            "NaN repaired after the overflow",
            "By then the numbers are lost. And an overflow need not show as NaN: for [709.5, "
            "709.5] only the sum is inf, and both weights are 0. Subtract each row's maximum "
            "first, and there is nothing to repair.",
            *_repaired(_unstable),
            *_repaired(_in_float64(_unstable)),
        ),
        Mistake(
            "a small number added to the sum",
            "The weights add to a little less than 1. Once the maximum is subtracted the sum is at "
            "least 1, so nothing has to protect it from being 0.",
            *map(_with_epsilon, (1e-3, 1e-5, 1e-6, 1e-7, 1e-8)),
        ),
        Mistake(
            "axis 1 in place of the last axis",
            "All is right for two axes. One axis raises an error, and with three or four the "
            "weights compete along the second axis. Counted from the end, the last axis is -1.",
            lambda x: softmax(x, axis=1),
            lambda x: _normal(_exp(x), axis=1),
        ),
        Mistake(
            "right for one and two axes only",
            "With three or four axes the weights compete along the second axis. axis=-1 is the "
            "last axis of any array, so one line does for all of them.",
            lambda x: softmax(x, axis=min(1, x.ndim - 1)),
        ),
        Mistake(
            "Python's max or sum",
            "All is right for a single row. Python's max and sum run along the first axis: with "
            "several rows max raises an error and sum adds up columns. NumPy's take axis=-1 and "
            "keepdims=True.",
            lambda x: np.exp(x - max(x)) / sum(np.exp(x - max(x))),
            lambda x: _normal(np.exp(x - max(x))),
            lambda x: np.exp(x - max(x)) / np.exp(x - max(x)).sum(),
        ),
        Mistake(
            "one sum for the whole array",
            "All rows together add to 1. Every row needs a sum of its own, along the last axis.",
            lambda x: _exp(x) / _exp(x).sum(),
        ),
        Mistake(
            "one maximum for the whole array",
            "Rows far below the largest score underflow: all their exponentials are 0, and 0 / 0 "
            "is NaN. Each row needs its own maximum.",
            lambda x: _normal(np.exp(x - x.max())),
        ),
        Mistake(
            "keepdims forgotten in the maximum",
            "Each maximum meets a column in place of its row: an error for most shapes, silently "
            "wrong numbers for as many rows as keys. keepdims=True keeps it with its row.",
            lambda x: _normal(np.exp(x - x.max(axis=-1))),
        ),
        Mistake(
            "keepdims forgotten in the sum",
            "Each sum meets a column in place of its row: an error for most shapes, silently "
            "wrong numbers for as many rows as keys. keepdims=True keeps it with its row.",
            lambda x: _exp(x) / _exp(x).sum(axis=-1),
            lambda x: np.exp(x) / np.exp(x).sum(axis=-1),
        ),
        Mistake(
            "keepdims forgotten in the maximum and the sum",
            "Maxima and sums meet columns in place of their rows: an error for most shapes, "
            "silently wrong numbers for as many rows as keys. keepdims=True keeps them in place.",
            lambda x: np.exp(x - x.max(axis=-1)) / np.exp(x - x.max(axis=-1)).sum(axis=-1),
        ),
        NO_EXPONENTIAL,
        HARD_ARGMAX,
        Mistake(
            "logarithm of the softmax",
            "These are log-weights: all negative. Losses use them, but an average needs the "
            "weights themselves.",
            lambda x: x - x.max(-1, keepdims=True) - np.log(_exp(x).sum(-1, keepdims=True)),
        ),
        NOT_DIVIDED,
        Mistake(
            "sigmoid of every score",
            "Every score is squeezed between 0 and 1 by itself, so a row need not add to "
            "1. In a softmax the keys of a row compete.",
            lambda x: 1 / (1 + np.exp(-x)),
        ),
        Mistake(
            "powers of 2 in place of e",
            "The weights add to 1 but are too even: their ratios are powers of 2, and those grow "
            "more slowly than powers of e.",
            lambda x: _normal(2.0 ** (x - x.max(axis=-1, keepdims=True))),
        ),
        Mistake(
            "smallest score wins",
            "A sign is turned: the smallest score gets the largest weight. That suits distances; "
            "scores are similarities.",
            lambda x: softmax(-x),
        ),
        Mistake(
            "integer weights for integer scores",
            "For integer scores every weight is cut down to 0 or 1. An integer array can hold "
            "nothing else, and np.zeros_like of integers is one: ask for a float array.",
            _integer_result,
        ),
    ),
    hints=(
        "Take the exponential of every score, then share out a weight of 1 along the last axis.",
        "Both the maximum and the sum run along axis=-1. With keepdims=True they keep that axis, "
        "so that each row meets its own number.",
        "Subtract the maximum of each row before np.exp: all weights stay the same, since the "
        "factor exp(-maximum) is in the exponentials and in their sum.",
    ),
)

# ---------------------------------------------------------------------------- soft_lookup


def _lookup_cases():
    rng = np.random.default_rng(2)
    prices, rows = np.array([10.0, 20.0, 60.0]), np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 5.0]])
    keys = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]])
    yield Case("one key", np.array([1.0]), np.array([[2.0]]), np.array([5.0]))
    yield Case("two keys", np.array([1.0, 0.0]), np.eye(2), prices[:2])
    yield Case("temperature 2", np.array([1.0, 0.0]), np.eye(2), prices[:2], temperature=2.0)
    yield Case("ties", np.array([1.0, 1.0]), np.eye(2), prices[:2])
    yield Case("rows as values", np.array([1.0, -0.5]), keys, rows)
    yield Case("several queries", np.array([[1.0, -0.5], [0.0, 1.0]]), keys, prices)
    yield Case("integers", np.array([1, 2]), np.array([[1, 0], [1, 1]]), np.array([10, 20]), 2)
    yield Case("temperature 0.1", np.array([0.3, 0.2]), keys, prices, 0.1)
    yield Case("temperature 10", np.array([3.0, 2.0]), keys, prices, temperature=10.0)
    yield Case("temperature 1000", np.array([30.0, 20.0]), keys, prices, temperature=1000.0)
    near = np.array([[1.0, 0.0], [1.1, 0.0]]), prices[:2]  # they stay soft at a low temperature
    yield Case("near scores at a low temperature", np.array([0.01, 0.0]), *near, temperature=1e-3)
    yield Case("near scores at a lower one", np.array([0.0001, 0.0]), *near, temperature=1e-5)
    square = rng.normal(size=(3, 3, 3)).round(1)
    yield Case("as many queries as keys", *square)
    yield Case("float32", *(x.astype(np.float32) for x in square), 0.5)
    for q, k, d, v in (2, 4, 3, 5), (5, 2, 4, 3), (1, 5, 2, 2), (4, 4, 4, 4):
        tables = (rng.normal(size=shape).round(1) for shape in ((q, d), (k, d), (k, v)))
        yield Case("random tables", *tables, round(float(rng.uniform(0.3, 3)), 1))
    yield Case("temperature near 0", np.array([3.0, 2.0]), keys, prices, 1e-3, extreme=True)


def _distance(q, k):
    return np.sqrt(((q[..., None, :] - k) ** 2).sum(axis=-1))


def _unit(x):
    return x / np.sqrt((x**2).sum(axis=-1, keepdims=True))


def _dot(q, k):
    return q @ k.T


def _lookup(weights, score=_dot):
    """A soft lookup with a choice of weights, from scores and temperature, and of score."""
    return lambda query, keys, values, temperature=1.0: (
        weights(score(query, keys), temperature) @ values
    )


LEAST = 1, 0.1, 0.05, 0.02, 0.01, 0.001, 1e-4

my_soft_lookup = WriteFunction(
    level=2,
    trains="scores, weights and output in NumPy",
    reference=lambda query, keys, values, temperature=1.0: soft_lookup(
        query, keys, values, temperature
    ),
    cases=tuple(_lookup_cases()),
    mistakes=(
        Mistake(
            "multiplied by the temperature",
            "High and low temperature are swapped: a large temperature must make the weights "
            "even, a small one must sharpen them.",
            _lookup(lambda s, t: softmax(s * t)),
        ),
        Mistake(
            "temperature applied after the softmax",
            "The weights no longer add to 1, and their proportions stay as they were. The "
            "temperature belongs to the scores, before the exponential.",
            _lookup(lambda s, t: softmax(s) / t),
        ),
        Mistake(
            "temperature ignored",
            "The result is right at temperature 1 and does not move when the temperature does. If "
            "you divide weights or exponentials by it and then by their sum, it cancels: divide "
            "the scores.",
            _lookup(lambda s, t: softmax(s)),
        ),
        Mistake(
            "low temperatures raised to a least one",
            "Below some temperature the weights stop getting sharper. Every positive temperature "
            "counts: the stable softmax has no trouble with small ones.",
            *(_lookup(lambda s, t, _=least: softmax(s / max(t, _))) for least in LEAST),
            *(_lookup(lambda s, t, _=least: softmax(s / (t + _))) for least in LEAST),
        ),
        Mistake(
            "the nearest key alone at low temperatures",
            "The result jumps to one value when the temperature gets low. Keys with nearly the "
            "same score still share the weight there, and tied ones share it at any temperature.",
            *(
                _lookup(lambda s, t, _=least: _one_hot(s) if t < _ else softmax(s / t))
                for least in LEAST
            ),
            *(
                _lookup(lambda s, t, _=least: _one_hot(s) if t <= _ else softmax(s / t))
                for least in LEAST
            ),
        ),
        Mistake(
            "argmax in place of softmax",
            "Only the nearest key counts, as in nearest_lookup. In a soft lookup every key has a "
            "weight, so that a small step of the query moves the result.",
            _lookup(lambda s, t: _one_hot(s)),
        ),
        Mistake(
            "softmax over the queries",
            "Each key shares its weight out among the queries. It must be the other way round: "
            "for each query, the weights of all keys add to 1.",
            _lookup(lambda s, t: softmax(s / t, axis=0)),
        ),
        Mistake(
            "softmax over all entries at once",
            "With several queries all their weights together add to 1. Each query has a weight of "
            "1 of its own to share out: the sum runs along the last axis.",
            _lookup(lambda s, t: softmax((s / t).ravel()).reshape(s.shape)),
        ),
        Mistake(
            "softmax along axis 1",
            "All is right for several queries. One query of shape (d,) has scores of one axis, and "
            "there is no axis 1: the keys lie along axis -1 in both cases.",
            _lookup(lambda s, t: softmax(s / t, axis=1)),
        ),
        Mistake(
            "right for one query only",
            "One query of shape (d,) works. Several queries (q, d) raise an error or get the wrong "
            "scores: they need one row of scores each, (q, k), in the order query @ keys.T.",
            lambda query, keys, values, temperature=1.0: (
                softmax(keys @ query / temperature) @ values
            ),
            lambda query, keys, values, temperature=1.0: (
                softmax((keys * query).sum(axis=-1) / temperature) @ values
            ),
        ),
        Mistake(
            "not divided by the sum",
            "The exponentials weigh the values, but they do not add to 1, so the result is no "
            "average. Divide them by their sum.",
            _lookup(lambda s, t: np.exp(s / t)),
            _lookup(lambda s, t: _exp(s / t)),
        ),
        Mistake(
            "softmax taken twice",
            "The weights are much too even: a softmax has been taken of weights that were already "
            "one.",
            _lookup(lambda s, t: softmax(softmax(s / t))),
            _lookup(lambda s, t: softmax(softmax(s) / t)),
        ),
        Mistake(
            "scores used as weights",
            "Scores can be negative and need not add to 1, so the result is a sum and no average. "
            "There is a softmax between scores and weights.",
            _lookup(lambda s, t: s / t),
            _lookup(lambda s, t: s),
        ),
        Mistake(
            "scores divided by their sum",
            "They add to 1, but a negative score is a negative weight, and the temperature cancels "
            "out. The exponential makes weights positive.",
            _lookup(lambda s, t: _normal(s)),
        ),
        Mistake(
            "keys averaged in place of values",
            "The weights are right, but they are applied to the keys. Keys are for finding; what "
            "is looked up is the values.",
            lambda query, keys, values, temperature=1.0: (
                softmax(query @ keys.T / temperature) @ keys
            ),
        ),
        Mistake(
            "weights returned",
            "These are the weights of the keys. One step is missing: the average of the values.",
            lambda query, keys, values, temperature=1.0: softmax(query @ keys.T / temperature),
        ),
        Mistake(
            "divided by the root of the width",
            "The root of d comes in chapter 3. Here the temperature alone sets the scale.",
            _lookup(lambda s, t: softmax(s / t), lambda q, k: q @ k.T / np.sqrt(q.shape[-1])),
        ),
        Mistake(
            "distance in place of the dot product",
            "The weights follow the distance to each key. For keys of one length squared distance "
            "and dot product give the same order; for others they do not. Use the dot product.",
            _lookup(lambda s, t: softmax(-(s**2) / t), _distance),
            _lookup(lambda s, t: softmax(-(s**2) / 2 / t), _distance),
            _lookup(lambda s, t: softmax(-s / t), _distance),
        ),
        Mistake(
            "query and keys brought to length 1",
            "This compares directions only (the cosine). A longer key must score higher here.",
            _lookup(lambda s, t: softmax(s / t), lambda q, k: _unit(q) @ _unit(k).T),
        ),
        Mistake(
            "smallest score wins",
            "A sign is turned: the key with the smallest dot product has the largest weight.",
            _lookup(lambda s, t: softmax(-s / t)),
        ),
        Mistake(
            "no maximum subtracted",
            "At a small temperature the scores grow past 709, np.exp overflows and the result is "
            "NaN. Use the stable softmax.",
            _lookup(lambda s, t: _unstable(s / t)),
        ),
    ),
    hints=(
        "Three steps: a score for each key, a weight for each key, an average of the values.",
        "query @ keys.T has one score for each key, for one query or for many. The temperature "
        "divides the scores.",
        "softmax(scores) gives the weights; weights @ values is the average.",
    ),
)

# ---------------------------------------------------------------------------- nearest_fault


def _nearest_cases():
    rng = np.random.default_rng(3)
    keys, prices = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]), np.array([10.0, 20.0, 60.0])
    yield Case("one query", np.array([[3.0, 1.0]]), np.eye(2), prices[:2])
    yield Case(
        "more queries than keys", np.array([[0.0, 1], [2, 0], [1, 0]]), np.eye(2), prices[1:]
    )
    yield Case("ties", np.array([[1.0, 1.0], [2.0, 2.0]]), np.eye(2), prices[:2])
    close = np.array([[1.0, 0.0], [1.000001, 0.0]])
    yield Case("nearly equal scores", np.array([[1.0, 0.0]]), close, prices[:2])
    low = np.array([[-100000.0, 0.0]]), np.array([[200000.0, 0.0], [100000.0, 0.0]])
    yield Case("scores far below 0", *low, prices[:2], extreme=True)
    yield Case("two negative scores", np.array([[-2.0, -1.0]]), np.eye(2), prices[:2])
    yield Case("only negative scores", np.array([[-2.0, -1.0]]), keys, prices)
    yield Case("as many queries as keys", np.array([[2.0, 0], [0, 3], [-1, -2]]), keys, prices)
    yield Case(
        "rows as values", np.array([[-1.0, 1], [1, -2]]), keys, rng.normal(size=(3, 4)).round(1)
    )
    for q, k, d, v in (3, 3, 2, 3), (2, 5, 3, 2), (6, 4, 2, 1), (4, 4, 4, 4):
        shapes = (q, d), (k, d), (k, v)
        yield Case("random tables", *(rng.normal(size=shape).round(1) for shape in shapes))
    # from 17 numbers on, a sort that is not stable may put a later one of equal scores first
    tied = np.where(np.arange(20) < 10, 1.0, 2.0)[:, None]
    yield Case("many tied keys", np.array([[1.0]]), tied, np.arange(20.0))
    # the faulty version can do this; an answer that cannot may have another fault besides
    yield Case("a query of shape (d,)", np.array([1.0, 3.0]), keys[:2], prices[:2], extreme=True)
    shapes = (4, 3), (3, 3), (3,)
    single = (rng.normal(size=shape).round(1).astype(np.float32) for shape in shapes)
    yield Case("float32", *single)


def _last_argmax(scores):
    return scores.shape[-1] - 1 - scores[..., ::-1].argmax(axis=-1)


def _nearly_largest(scores):
    return np.isclose(scores, scores.max(axis=-1, keepdims=True)).astype(float)


def _search_from(start):
    """A loop that keeps the best score so far, from a start that may be too high."""

    def lookup(query, keys, values):
        scores = query @ keys.T
        return values[np.where(scores.max(axis=-1) > start, scores.argmax(axis=-1), 0)]

    return lookup


LOW = 1, 0.1, 0.01, 0.001, 1e-4, 1e-5, 1e-6  # temperatures

nearest = WriteFunction(
    level=1,
    trains="which axis holds queries and which holds keys",
    reference=lambda query, keys, values: nearest_lookup(query, keys, values),
    cases=tuple(_nearest_cases()),
    mistakes=(
        Mistake(
            "the fault is still there: argmax over the queries",
            "The result says, for each key, which query is nearest. It must be the other way: for "
            "each query, which key. With as many queries as keys even the shape is right.",
            lambda q, k, v: v[np.argmax(q @ k.T, axis=0)],
        ),
        Mistake(
            "argmin in place of argmax",
            "The dot product is a similarity, and this lookup wants the key with the largest one. "
            "Distances are what one minimises.",
            lambda q, k, v: v[(q @ k.T).argmin(axis=-1)],
        ),
        Mistake(
            "index returned",
            "This says where the nearest key stands. The function must return the value there.",
            lambda q, k, v: (q @ k.T).argmax(axis=-1),
        ),
        Mistake(
            "key returned",
            "This is the nearest key itself. What belongs to it stands in values.",
            lambda q, k, v: k[(q @ k.T).argmax(axis=-1)],
        ),
        Mistake(
            "score returned",
            "This is the largest score of each query. The place where it stands picks the value.",
            lambda q, k, v: (q @ k.T).max(axis=-1),
        ),
        Mistake(
            "one argmax over all scores",
            "There is one result for all queries together, from the largest of all scores. Each "
            "query needs a key of its own.",
            lambda q, k, v: v[np.argmax(q @ k.T)],
            lambda q, k, v: v[np.argmax(q @ k.T) % len(k)],
        ),
        Mistake(
            "largest absolute score",
            "A large negative score means that the key points the other way: it is far, not near.",
            lambda q, k, v: v[np.abs(q @ k.T).argmax(axis=-1)],
        ),
        Mistake(
            "smallest distance",
            "This key is the nearest by distance. The best key here is the one with the largest "
            "dot product; the two are sure to agree only if all keys have the same length.",
            lambda q, k, v: v[_distance(q, k).argmin(axis=-1)],
        ),
        Mistake(
            "keys brought to length 1",
            "This takes the key with the best direction (the cosine). A longer key must score "
            "higher here: leave the keys as they are.",
            lambda q, k, v: v[(q @ _unit(k).T).argmax(axis=-1)],
        ),
        Mistake(
            "the last of tied keys",
            "Of equal scores the first key must win, as in np.argmax.",
            lambda q, k, v: v[_last_argmax(q @ k.T)],
        ),
        Mistake(
            "tied values added",
            "Where several keys have the largest score, the result is the sum of their values. Of "
            "equal scores the first key alone must win, as in np.argmax.",
            lambda q, k, v: _all_largest(q @ k.T) @ v,
            lambda q, k, v: _nearly_largest(q @ k.T) @ v,
        ),
        Mistake(
            "nearly equal scores taken for equal",
            "Scores that differ by a millionth are rounded to the same number here, so the first "
            "of them wins. Compare the scores as they are.",
            lambda q, k, v: v[_nearly_largest(q @ k.T).argmax(axis=-1)],
            *(
                lambda q, k, v, _digits=digits: v[(q @ k.T).round(_digits).argmax(axis=-1)]
                for digits in range(1, 6)
            ),
        ),
        Mistake(
            "mean of tied values",
            "Where several keys have the largest score, the result is the mean of their values, as "
            "in a soft lookup near temperature 0. Here the first key alone must win.",
            lambda q, k, v: _normal(_all_largest(q @ k.T)) @ v,
            lambda q, k, v: _normal(_nearly_largest(q @ k.T)) @ v,
        ),
        Mistake(
            "a search that starts at 0 or another fixed score",
            "Where all scores of a query lie below that start none of them is larger, so the first "
            "key stays. Start with the score of the first key, or with minus infinity.",
            *map(_search_from, (0, -1, -2, -5, -10, -100, -1e9)),
        ),
        Mistake(
            "right for several queries, not for one",
            "One query of shape (d,) raises an error, though the faulty version can do it. Its "
            "scores have one axis only: count the axis of the keys from the end, axis=-1.",
            lambda q, k, v: v[np.argmax(q @ k.T, axis=1)],
        ),
        Mistake(
            "softmax in place of argmax",
            "This is a soft lookup: an average of all values, also at a low temperature. Here "
            "one stored value is asked for.",
            *(lambda q, k, v, _t=t: softmax(q @ k.T / _t) @ v for t in LOW),
        ),
    ),
    hints=(
        "Call the function with two queries and three keys, and look at the shape of the result.",
        "Print scores.shape: which axis counts the queries, which one the keys?",
        "argmax removes the axis that it runs over. The axis of the keys has to go.",
    ),
)

# ---------------------------------------------------------------------------- softmax_test


def _formula(x):
    """The formula as it stands, where it does not overflow."""
    return _unstable(x) if np.abs(x).max() < 80 else softmax(x)


def _last_digits(x):
    """A right softmax whose last digits differ from those of the others."""
    return _normal(_exp(x)) * (1 - 1e-15)


def _first_weight_nan(x):
    return np.where(np.arange(x.shape[-1]) == 0, np.nan, softmax(x))


def _by_logarithm(x):
    top = x.max(axis=-1, keepdims=True)
    return np.exp(x - top - np.log(np.exp(x - top).sum(axis=-1, keepdims=True)))


def _takes_lists(function):
    """The tests of readers may pass lists, whole numbers and scores large enough to overflow."""

    def softmax(scores):
        with np.errstate(all="ignore"):
            scores = np.asarray(scores)
            return function(scores if scores.dtype.kind == "f" else scores.astype(float))

    return softmax


def _fault(mistake, help):
    return Mistake(mistake.name, help, _takes_lists(mistake.answers[0]))


CUBE = np.array([[[1.0, 2.0], [4.0, 0.5]], [[0.0, 1.0], [-1.0, 3.0]]])
TOP, FAR = np.array([1000.0, 1000.0]), np.array([[1000.0, 999.0], [-1000.0, -1002.0]])
FLAT, ROWS = np.array([1.0, 2.0, 4.0]), np.array([[1.0, 2.0, 4.0], [0.5, 0.0, -1.0]])
LARGE, SATURATED = np.array([1000.0, 999.0, 0.0]), np.array([1000.0, 0.0, -500.0])


def _assert_close(result, expected):
    np.testing.assert_allclose(result, expected, rtol=1e-6, equal_nan=False)


def _test_values(*inputs):
    """A test that compares numbers, on these inputs only."""

    def test(function):
        for scores in inputs:
            _assert_close(function(scores), softmax(scores))

    return test


def _nothing_above(*inputs):
    """A test that looks for a large difference, and finds none beside NaN."""

    def test(function):
        for scores in inputs:
            assert not np.abs(np.asarray(function(scores)) - softmax(scores)).max() > 1e-6

    return test


def _test_sums(*inputs):
    def test(function):
        for scores in inputs:
            sums = np.asarray(function(scores)).sum(axis=-1)
            assert np.allclose(sums, 1)

    return test


def _test_sums_row_by_row(scores):
    def test(function):
        for row in function(scores):
            assert np.isclose(sum(row), 1)

    return test


def _test_largest(*inputs):
    def test(function):
        for scores in inputs:
            assert np.array_equal(np.argmax(function(scores), axis=-1), scores.argmax(axis=-1))

    return test


def _test_shape(*inputs):
    def test(function):
        for scores in inputs:
            assert function(scores).shape == scores.shape

    return test


def _test_itself(*inputs):
    def test(function):
        for scores in inputs:
            _assert_close(function(scores), function(scores))

    return test


softmax_test = CatchFaults(
    level=3,
    trains="a test that tells softmax from what resembles it",
    right={
        "the library's": _takes_lists(softmax),
        "the formula as it stands": _takes_lists(_formula),
        "with a logarithm": _takes_lists(_by_logarithm),
        "other last digits": _takes_lists(_last_digits),
    },
    faults=(
        _fault(FIRST_AXIS, "Give the function more than one row: with one row the axes agree."),
        _fault(OVERFLOW, "Give the function a score of 1000, and look for NaN."),
        _fault(ALL_ENTRIES, "Give the function more than one row: with one row nothing differs."),
        _fault(
            HARD_ARGMAX,
            "Use scores that lie close together: [0, log(3)] has the weights [1/4, 3/4]. Argmax "
            "makes [0, 1] of them.",
        ),
        _fault(NOT_DIVIDED, "The weights of each row must add to 1."),
        _fault(
            NO_EXPONENTIAL,
            "Compare weights with numbers that you know: [0, log(3)] has the weights [1/4, 3/4].",
        ),
        Mistake(
            "equal weights",
            "This one never looks at the scores. Compare numbers for scores that differ.",
            _takes_lists(lambda x: np.full(x.shape, 1 / x.shape[-1])),
        ),
        Mistake(
            "only the first row",
            "Of several rows it returns the weights of the first one alone. Use rows with "
            "different weights, and compare all of them.",
            _takes_lists(lambda x: softmax(x.reshape(-1, x.shape[-1])[0])),
        ),
        Mistake(
            "one maximum for the whole array",
            "Use two rows far apart, as 1000 and -1000: the lower one must not become 0 / 0.",
            _takes_lists(lambda x: _normal(np.exp(x - x.max()))),
        ),
        Mistake(
            "the minimum subtracted",
            "Use a row with a score of 1000 beside scores of 0.",
            _takes_lists(_shifted(lambda x: x.min(axis=-1, keepdims=True))),
        ),
        Mistake(
            "last axis taken as axis 1",
            "It is right for one and two axes. Give the function three.",
            _takes_lists(lambda x: softmax(x, axis=min(1, x.ndim - 1))),
        ),
        Mistake(
            "NaN for one weight",
            "No comparison with NaN is true. Demand that differences are small, as np.allclose "
            "does, not that none is large.",
            _takes_lists(_first_weight_nan),
        ),
    ),
    nearly=(
        Mistake(
            "tiny weights kept above 0",
            "It rejects every right version: in floating point very small weights round to 0, as "
            "exp(-2000) does.",
            _takes_lists(lambda x: np.maximum(softmax(x), 1e-300)),
        ),
    ),
    mistakes=(
        Mistake(
            "an assertion that no fault breaks",
            "Every fault passes: what stands in the assert holds for any of these functions, as "
            "for a result that is compared with itself. Compare it with numbers that you know.",
            _test_itself(FLAT),
            _test_shape(FLAT),
        ),
        Mistake(
            "nothing but NaN is noticed",
            "The overflow is caught, no wrong number is. A result compared with itself, or "
            "only asked whether it is finite, can be any number. Compare it with known ones.",
            _test_itself(FLAT, LARGE),
            _test_itself(TOP),
            _test_itself(FAR),
        ),
        Mistake(
            "only the shape",
            "Every faulty softmax that keeps the shape passes. The test must look at numbers.",
            _test_shape(ROWS),
            _test_shape(CUBE),
        ),
        Mistake(
            "only that the weights add to 1",
            "Many wrong weights add to 1: equal ones, or all of it on one key. Compare some "
            "weights with numbers that you know.",
            _test_sums(ROWS),
            _test_sums(ROWS, LARGE),
            _test_sums(FLAT),
            _test_sums(FLAT, LARGE),
            _test_sums_row_by_row(ROWS),
            _test_sums(ROWS, FAR, CUBE),
        ),
        Mistake(
            "NaN passes",
            "Every comparison with NaN is false, so not (difference > limit) is true for NaN. "
            "Write assert (difference < limit).all(), or use np.allclose.",
            _nothing_above(ROWS),
            _nothing_above(ROWS, LARGE, FAR, CUBE),
            _nothing_above(ROWS, LARGE, FAR, TOP),
        ),
        Mistake(
            "only one row",
            "In one row the last axis, the first axis and all entries are the same thing. "
            "Give the function at least two rows, too.",
            _test_values(FLAT, LARGE),
            _test_values(FLAT, TOP),
        ),
        Mistake(
            "only one row of small scores",
            "One row cannot show a wrong axis, and small scores cannot show an overflow.",
            _test_values(FLAT),
        ),
        Mistake(
            "only small scores",
            "The axis is tested, the overflow is not: np.exp(1000) is inf. Add large scores.",
            _test_values(ROWS),
            _test_values(ROWS, CUBE),
        ),
        Mistake(
            "no rows far apart",
            "One maximum for the whole array passes: then a row far below the others has "
            "exponentials of 0 only. Add rows such as [1000, 1000] and [-1000, -1000].",
            _test_values(ROWS, TOP),
            _test_values(ROWS, LARGE),
            _test_values(ROWS, LARGE, CUBE),
        ),
        Mistake(
            "no large score beside small ones",
            "Any number near the scores of a row can be subtracted, as the minimum, and nobody "
            "notices. Add a row such as [0, 0, 1000].",
            _test_values(ROWS, FAR),
            _test_values(ROWS, FAR, CUBE),
        ),
        Mistake(
            "no input with three axes",
            "A function that takes axis 1 for the last axis is right for one and two axes. Add an "
            "input of three axes, as scores[None].",
            _test_values(ROWS, FAR, LARGE),
        ),
        Mistake(
            "only scores so far apart that the softmax is one-hot",
            "Such weights are 1 and 0, whatever happens to them: argmax passes, and so does a "
            "softmax that is never divided by its sum. Add scores that lie close together.",
            _test_values(SATURATED),
            _test_values(np.array([SATURATED])),
        ),
        Mistake(
            "only which weight is the largest",
            "The largest score has the largest weight in many wrong functions too. Compare "
            "numbers, not places.",
            _test_largest(FLAT),
            _test_largest(ROWS),
            _test_largest(FLAT, LARGE),
            _test_largest(ROWS, LARGE),
        ),
    ),
    hints=(
        "Choose an input whose softmax you can compute by hand, and compare with np.allclose.",
        "One input is not enough: use two rows for the axis, the same with a third axis, and large "
        "scores for the overflow, in rows far apart and beside small ones.",
        "softmax of [0, log(3)] is [1/4, 3/4]; of [1000, 1000] it is [1/2, 1/2], of [0, 1000] it "
        "is [0, 1]. Put such rows below each other, with a third axis (scores[None]), and put "
        "assert before each comparison.",
    ),
)

EXERCISES = {
    "tie": tie,
    "softmax": my_softmax,
    "soft_lookup": my_soft_lookup,
    "nearest_fault": nearest,
    "softmax_test": softmax_test,
}
