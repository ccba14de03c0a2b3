"""The exercises of chapter 8, retrieval: references, cases, known mistakes, hints."""

import math
from itertools import combinations

import numpy as np
import torch

from attention_lib.checks.engine import Case, CatchFaults, Mistake, PredictValue, WriteFunction
from attention_lib.lookup import softmax
from attention_lib.retrieval import after_earlier_copies

# ---------------------------------------------------------------------------- table_weight

SLOTS, LEAD = 16, 5


def _table_weight():
    return 1 / (1 + (SLOTS - 1) * math.exp(-LEAD))


table_weight = PredictValue(
    level=1,
    trains="a lead in score as a share of the weight",
    answer=_table_weight,
    tolerance=3e-4,
    mistakes=(
        Mistake(
            "only one other slot counted",
            "That is the weight in a table of two slots. Here 15 others share what is left.",
            1 / (1 + math.exp(-LEAD)),
        ),
        Mistake(
            "the bound of chapter 1",
            "1 - 15 exp(-5) is what the weight is at least. Divide by the sum of all "
            "exponentials to get the weight itself.",
            1 - (SLOTS - 1) * math.exp(-LEAD),
        ),
        Mistake(
            "weight of one of the others",
            "That is the weight of one of the 15 other slots, or of all of them.",
            math.exp(-LEAD) / (1 + (SLOTS - 1) * math.exp(-LEAD)),
            1 - 1 / (1 + (SLOTS - 1) * math.exp(-LEAD)),
        ),
        Mistake(
            "no exponential",
            "A lead of 5 is a difference of scores. Weights are in the ratio of their "
            "exponentials.",
            LEAD / (LEAD + SLOTS - 1),
            LEAD / SLOTS,
            (LEAD + 1) / (LEAD + SLOTS),
        ),
        Mistake(
            "equal shares",
            "Of equal scores each would get 1/16, and the 15 others 15/16 together.",
            1 / SLOTS,
            1 - 1 / SLOTS,
        ),
        Mistake(
            "a ratio of exponentials, no weight",
            "That compares the right slot with the others. A weight is its part of the whole: "
            "divide by the sum of all 16 exponentials.",
            math.exp(LEAD) / (SLOTS - 1),
            math.exp(LEAD),
            (SLOTS - 1) * math.exp(-LEAD),
            math.exp(-LEAD),
        ),
        Mistake(
            "a percentage",
            "Weights are shares of 1, not of 100.",
            100 / (1 + (SLOTS - 1) * math.exp(-LEAD)),
        ),
        Mistake(
            "two decimals or fewer",
            "The exercise asks for three decimals at least.",
            0.91,
            0.9,
        ),
        Mistake(
            "everything",
            "All weight on one slot is the limit for an endless lead. Here the others get a share.",
            1,
        ),
        Mistake(
            "divided by a root once more",
            "The scores of this exercise are what the softmax gets. Nothing is left to divide.",
            1 / (1 + (SLOTS - 1) * math.exp(-LEAD / 8)),
            1 / (1 + (SLOTS - 1) * math.exp(-LEAD / 4)),
        ),
        Mistake(
            "one slot too many or too few",
            "The right slot is one of the 16, so 15 are left.",
            1 / (1 + SLOTS * math.exp(-LEAD)),
            1 / (1 + (SLOTS - 2) * math.exp(-LEAD)),
        ),
    ),
    hints=(
        "Only differences of scores count: let the right slot have 0 and the others -5.",
        "The exponentials are 1, once, and exp(-5), 15 times.",
        "1 / (1 + 15 * np.exp(-5)).",
    ),
)

# ---------------------------------------------------------------------------- key_scores


def _scores(embedding, w_q, w_k, divisor=None):
    queries, keys = embedding @ w_q.T, embedding @ w_k.T
    return queries @ keys.T / (math.sqrt(len(w_q)) if divisor is None else divisor)


def _matrices():
    rng = np.random.default_rng(80)
    # every product of these numbers is another one
    yield Case("two keys, width 1", np.array([[1.0], [2.0]]), np.array([[3.0]]), np.array([[0.5]]))
    yield Case("head of width 1", *(rng.normal(size=s).round(2) for s in ((2, 3), (1, 3), (1, 3))))
    sizes = {
        (4, 4, 4): "as many keys as features", (5, 3, 3): "width 3", (3, 4, 2): "narrow head",
        (6, 2, 5): "wide head", (7, 9, 9): "width 9",
    }  # fmt: skip
    for (keys, width, d), label in sizes.items():
        shapes = (keys, width), (d, width), (d, width)
        yield Case(label, *(rng.normal(size=shape).round(3) for shape in shapes))
    shapes = (3, 5), (5, 5), (5, 5)
    yield Case("float32", *(rng.normal(size=shape).astype(np.float32) for shape in shapes))


key_scores = WriteFunction(
    level=2,
    trains="what trained weights compute, read without the data",
    reference=lambda embedding, w_q, w_k: _scores(embedding, w_q, w_k),
    cases=tuple(_matrices()),
    mistakes=(
        Mistake(
            "the fault is still there: the matrices are not transposed",
            "nn.Linear computes x @ weight.T, so each row of a weight makes one feature. Without "
            ".T this is another product.",
            lambda e, q, k: (e @ q) @ (e @ k).T / math.sqrt(len(q)),
            lambda e, q, k: e @ q @ k.T @ e.T / math.sqrt(len(q)),
        ),
        Mistake(
            "only one matrix transposed",
            "Both projections are nn.Linear layers: queries and keys are x @ weight.T.",
            lambda e, q, k: (e @ q.T) @ (e @ k).T / math.sqrt(len(q)),
            lambda e, q, k: (e @ q) @ (e @ k.T).T / math.sqrt(len(q)),
        ),
        Mistake(
            "not scaled",
            "The layer divides by the root of the width of the head. Without it these are not the "
            "scores that the softmax gets.",
            lambda e, q, k: _scores(e, q, k, 1),
        ),
        Mistake(
            "divided by the width, not by its root",
            "Chapter 3: the divisor is the root of the width.",
            lambda e, q, k: _scores(e, q, k, len(q)),
        ),
        Mistake(
            "divided by the root of another size",
            "The divisor is the root of the width of the head, the number of rows of w_q: neither "
            "the width of the embedding nor the number of keys.",
            lambda e, q, k: _scores(e, q, k, math.sqrt(e.shape[1])),
            lambda e, q, k: _scores(e, q, k, math.sqrt(len(e))),
        ),
        Mistake(
            "always divided by 8",
            "8 is the root of the chapter's width, 64. A head of another width has another root: "
            "take it from w_q.",
            lambda e, q, k: _scores(e, q, k, 8),
        ),
        Mistake(
            "queries in the columns",
            "Row i must belong to the query for key i. This is the transposed table.",
            lambda e, q, k: _scores(e, q, k).T,
        ),
        Mistake(
            "one matrix for both",
            "Queries come from w_q, keys from w_k.",
            lambda e, q, k: _scores(e, q, q),
            lambda e, q, k: _scores(e, k, k),
        ),
        Mistake(
            "softmax applied",
            "These are weights. The exercise asks for the scores before the softmax.",
            lambda e, q, k: softmax(_scores(e, q, k)),
        ),
        Mistake(
            "embedding left out on one side",
            "Both sides are embedded and projected: a query is embedding @ w_q.T.",
            lambda e, q, k: e @ (e @ k.T).T / math.sqrt(len(q)),
            lambda e, q, k: (e @ q.T) @ e.T / math.sqrt(len(q)),
        ),
        Mistake(
            "no projection",
            "That compares the vectors themselves. The layer compares their projections.",
            lambda e, q, k: e @ e.T / math.sqrt(len(q)),
            lambda e, q, k: e @ e.T,
        ),
        Mistake(
            "the matrices alone",
            "W_q^T W_k compares features. The rows of the embedding on both sides turn that into "
            "a table of keys.",
            lambda e, q, k: q.T @ k / math.sqrt(len(q)),
            lambda e, q, k: q.T @ k,
        ),
    ),
    hints=(
        "What is the shape of embedding @ w_q.T? One row is the query of one key.",
        "Queries times the transposed keys: queries in the rows, keys in the columns.",
        "Divide by np.sqrt(len(w_q)): w_q has one row for each feature of the head.",
    ),
)

# ---------------------------------------------------------------------------- reverse


def _distances(length, centre):
    place = np.arange(length)
    return -np.abs(centre(place, length)[:, None] - place)


def _offsets(length):
    """The distances of :func:`_reverse` with their sign."""
    place = np.arange(length)
    return length - 1.0 - place[:, None] - place


def _reverse(length, temperature=1.0, centre=lambda i, n: n - 1 - i):
    return softmax(_distances(length, centre) / temperature)


def _reverse_cases():
    yield Case("one token", 1, 1.0)
    yield Case("two tokens", 2, 1.0)
    yield Case("two tokens, sharp", 2, 0.25)
    for length, temperature in ((3, 1.0), (3, 0.5), (4, 2.0), (5, 0.1), (6, 1.0), (7, 0.3)):
        yield Case("more tokens", length, temperature)
    yield Case("nearly hard", 4, 1e-3, extreme=True)


reverse = WriteFunction(
    level=2,
    trains="weights made by hand from positions",
    reference=lambda length, temperature: _reverse(length, temperature),
    cases=tuple(_reverse_cases()),
    mistakes=(
        Mistake(
            "the text forwards",
            "Query 0 looks at key 0: the text comes back as it was. Query 0 must look at the last "
            "key.",
            lambda n, t: _reverse(n, t, lambda i, n: i),
        ),
        Mistake(
            "one place off",
            "Places count from 0, so the last one is length - 1. These queries look one place "
            "beside the right one.",
            lambda n, t: _reverse(n, t, lambda i, n: n - i),
            lambda n, t: _reverse(n, t, lambda i, n: n - 2 - i),
            lambda n, t: _reverse(n, t, lambda i, n: (n - i) % n),
        ),
        Mistake(
            "scores, no weights",
            "These are scores. Attention takes their softmax.",
            lambda n, t: _distances(n, lambda i, n: n - 1 - i) / t,
            lambda n, t: _distances(n, lambda i, n: n - 1 - i) + 0.0,
        ),
        Mistake(
            "temperature left out",
            "The scores are divided by the temperature before the softmax.",
            lambda n, t: _reverse(n),
        ),
        Mistake(
            "temperature upside down",
            "A small temperature must make the weights sharp: divide by it.",
            lambda n, t: _reverse(n, 1 / t),
        ),
        Mistake(
            "root of the temperature",
            "The scores are divided by the temperature itself. A root is taken of the width alone.",
            lambda n, t: _reverse(n, math.sqrt(t)),
        ),
        Mistake(
            "no absolute value",
            "A distance is never negative. Without abs the keys on one side of the right place "
            "get larger scores than the right place.",
            lambda n, t: softmax(_offsets(n) / t),
            lambda n, t: softmax(-_offsets(n) / t),
        ),
        Mistake(
            "decimals of the scores lost",
            "An array of integers drops what stands behind the point, and // rounds down. Scores "
            "are fractions.",
            lambda n, t: softmax(np.trunc(_distances(n, lambda i, n: n - 1 - i) / t)),
            lambda n, t: softmax(_distances(n, lambda i, n: n - 1 - i) // t),
        ),
        Mistake(
            "the farthest key wins",
            "The sign is turned: a larger distance needs a smaller score.",
            lambda n, t: softmax(-_distances(n, lambda i, n: n - 1 - i) / t),
        ),
        Mistake(
            "squared distance",
            "The exercise asks for the plain distance, not for its square.",
            lambda n, t: softmax(-(_distances(n, lambda i, n: n - 1 - i) ** 2) / t),
        ),
        Mistake(
            "hard weights",
            "That is the limit at temperature 0. At a larger one the neighbours get a share.",
            lambda n, t: np.eye(n)[::-1],
            lambda n, t: np.fliplr(np.eye(n)),
        ),
        Mistake(
            "one-hot positions compared",
            "With one-hot vectors all wrong keys get the same score. Here a key loses with its "
            "distance.",
            lambda n, t: softmax(np.eye(n)[::-1] / t),
        ),
        Mistake(
            "softmax over the queries",
            "The weights of each row must sum to 1; here those of each column do.",
            lambda n, t: softmax(_distances(n, lambda i, n: n - 1 - i) / t, axis=0),
        ),
        Mistake(
            "softmax over everything",
            "All rows together sum to 1. Each query has a softmax of its own.",
            lambda n, t: softmax((_distances(n, lambda i, n: n - 1 - i) / t).ravel()).reshape(n, n),
        ),
    ),
    hints=(
        "Which key must query i look at, so that the text comes back reversed?",
        "With i = np.arange(length)[:, None] and j = np.arange(length) the distance from the "
        "right key is abs(length - 1 - i - j), for all pairs at once.",
        "softmax(-abs(length - 1 - i - j) / temperature).",
    ),
)

# ---------------------------------------------------------------------------- sort


def _ranks(numbers):
    return np.argsort(np.argsort(numbers, kind="stable"))


def _sort(numbers, temperature, ranks=_ranks):
    places = np.arange(len(numbers))[:, None]
    return softmax(-np.abs(places - ranks(numbers)) / temperature)


def _number_cases():
    yield Case("one number", np.array([3.0]), 1.0)
    yield Case("two numbers", np.array([2.0, -1.0]), 0.5)
    yield Case("sorted already", np.array([1.0, 2.0, 5.0]), 1.0)
    yield Case("reversed", np.array([4.0, 3.0, 1.0, -2.0]), 2.0)
    yield Case("moved on by one", np.array([3.0, 1.0, 2.0]), 0.5)
    yield Case("equal numbers", np.array([2.0, 1.0, 2.0, 1.0]), 1.0)
    yield Case("all equal", np.array([7.0, 7.0, 7.0]), 0.3)
    yield Case("equal pairs", np.array([1.0, 1.0, 0.0, 0.0]), 1.0)
    yield Case("three equal in the middle", np.array([0.0, 1.0, 1.0, 1.0, 0.0]), 0.5)
    yield Case("integers", np.array([5, 1, 4, 2]), 0.7)
    rng = np.random.default_rng(81)
    for size, temperature in ((5, 1.0), (6, 0.4), (8, 2.0)):
        yield Case("random numbers", rng.normal(size=size).round(2), temperature)
    # longer than what NumPy sorts by insertion, which keeps equal numbers in order
    yield Case("many equal numbers", rng.integers(4, size=24).astype(float), 1.0)


sort = WriteFunction(
    level=3,
    trains="weights made by hand from contents",
    reference=lambda numbers, temperature: _sort(numbers, temperature),
    cases=tuple(_number_cases()),
    mistakes=(
        Mistake(
            "argsort taken for the ranks",
            "np.argsort lists where the numbers of the result come from. The rank says where each "
            "number goes. For two numbers both are the same.",
            lambda x, t: _sort(x, t, lambda x: np.argsort(x, kind="stable")),
        ),
        Mistake(
            "equal numbers in any order",
            "np.argsort alone may mix up equal numbers. kind='stable' keeps them in their order.",
            lambda x, t: _sort(x, t, lambda x: np.argsort(np.argsort(x))),
        ),
        Mistake(
            "largest first",
            "The smallest number has rank 0.",
            lambda x, t: _sort(x, t)[::-1],
            lambda x, t: _sort(x, t, lambda x: _ranks(-x)),
        ),
        Mistake(
            "equal numbers with one rank",
            "Equal numbers get the same rank here, and another place gets none. Of equal numbers "
            "the first one comes first.",
            lambda x, t: _sort(x, t, lambda x: (x > x[:, None]).sum(axis=0)),
            lambda x, t: _sort(x, t, lambda x: (x >= x[:, None]).sum(axis=0) - 1),
            lambda x, t: _sort(x, t, lambda x: np.unique(x, return_inverse=True)[1]),
        ),
        Mistake(
            "last of equal numbers first",
            "Of equal numbers the first one must come first.",
            lambda x, t: _sort(x, t, lambda x: _ranks(x[::-1])[::-1]),
        ),
        Mistake(
            "queries and keys swapped",
            "Row i must belong to place i of the result, column j to number j: this is the "
            "transposed table.",
            lambda x, t: softmax(-np.abs(_ranks(x)[:, None] - np.arange(len(x))) / t),
            lambda x, t: _sort(x, t).T,
        ),
        Mistake(
            "the numbers in place of the ranks",
            "The distance is taken to the numbers themselves. What counts is their order.",
            lambda x, t: _sort(x, t, lambda x: x),
        ),
        Mistake(
            "distances between numbers",
            "The distance is from place i to the rank of number j. Here two numbers are compared, "
            "or two ranks.",
            lambda x, t: softmax(-np.abs(_ranks(x)[:, None] - _ranks(x)) / t),
            lambda x, t: softmax(-np.abs(x[:, None] - x) / t),
            lambda x, t: softmax(-np.abs(np.sort(x)[:, None] - x) / t),
        ),
        Mistake(
            "squared distance",
            "The exercise asks for the plain distance, not for its square.",
            lambda x, t: softmax(-((np.arange(len(x))[:, None] - _ranks(x)) ** 2) / t),
        ),
        Mistake(
            "no absolute value",
            "A distance is never negative. Without abs the ranks on one side of place i get larger "
            "scores than place i.",
            lambda x, t: softmax((np.arange(len(x))[:, None] - _ranks(x)) / t),
            lambda x, t: softmax((_ranks(x) - np.arange(len(x))[:, None]) / t),
        ),
        Mistake(
            "left in order",
            "These weights return the numbers in the order in which they came.",
            lambda x, t: _sort(x, t, lambda x: np.arange(len(x))),
        ),
        Mistake(
            "ranks from 1",
            "Places count from 0, so the smallest number has rank 0.",
            lambda x, t: _sort(x, t, lambda x: _ranks(x) + 1),
        ),
        Mistake(
            "scores, no weights",
            "These are scores. Attention takes their softmax.",
            lambda x, t: -np.abs(np.arange(len(x))[:, None] - _ranks(x)) / t,
        ),
        Mistake(
            "temperature left out",
            "The scores are divided by the temperature before the softmax.",
            lambda x, t: _sort(x, 1),
        ),
        Mistake(
            "temperature upside down",
            "A small temperature must make the weights sharp: divide by it.",
            lambda x, t: _sort(x, 1 / t),
        ),
        Mistake(
            "root of the temperature",
            "The scores are divided by the temperature itself. A root is taken of the width alone.",
            lambda x, t: _sort(x, math.sqrt(t)),
        ),
        Mistake(
            "hard weights",
            "That is the limit at temperature 0. At a larger one the neighbours get a share.",
            lambda x, t: np.eye(len(x))[np.argsort(x, kind="stable")],
        ),
        Mistake(
            "softmax over the queries",
            "The weights of each row must sum to 1; here those of each column do.",
            lambda x, t: softmax(-np.abs(np.arange(len(x))[:, None] - _ranks(x)) / t, axis=0),
        ),
        Mistake(
            "the farthest key wins",
            "The sign is turned: a larger distance needs a smaller score.",
            lambda x, t: softmax(np.abs(np.arange(len(x))[:, None] - _ranks(x)) / t),
        ),
    ),
    hints=(
        "For 3 1 2 the ranks are 2 0 1, but np.argsort gives 1 2 0.",
        "The argsort of the argsort is the list of the ranks; kind='stable' in the first one keeps "
        "equal numbers in their order.",
        "softmax(-abs(places - ranks) / temperature) with the places as a column, "
        "np.arange(n)[:, None].",
    ),
)

# ---------------------------------------------------------------------------- induction_test


def _marked(tokens):
    """Loops from the definition."""
    n = len(tokens)
    marked = np.zeros((n, n), dtype=bool)
    for i in range(n):
        for j in range(1, i + 1):
            marked[i, j] = tokens[j - 1] == tokens[i]
    return marked


def _by_arrays(tokens):
    tokens = np.asarray(tokens)
    marked = np.zeros((len(tokens), len(tokens)), dtype=bool)
    marked[:, 1:] = tokens[:, None] == tokens[:-1]
    return np.tril(marked)


def _by_library(tokens):
    numbers = np.unique(np.asarray(tokens), return_inverse=True)[1]  # letters become numbers, too
    return after_earlier_copies(torch.tensor(numbers)[None])[0].numpy()


def _wrong(change):
    """A faulty version: `change` gets the tokens and the right answer."""
    return lambda tokens: change(np.asarray(tokens), _by_arrays(tokens))


def _equal(tokens):
    return np.equal.outer(tokens, tokens)


def _wrapped(tokens):
    return np.tril(tokens[:, None] == np.roll(tokens, 1))


def _only(tokens, right, end):
    """The first or the last marked place of each row alone."""
    kept = np.zeros_like(right)
    for row, marks in enumerate(right):
        places = np.flatnonzero(marks)
        if len(places):
            kept[row, places[end]] = True
    return kept


def _other_rows(right):
    """The marks of each column below the diagonal turned upside down."""
    moved = np.zeros_like(right)
    for j in range(1, len(right)):
        moved[j:, j] = right[j:, j][::-1]
    return moved


def _exchanged(right):
    """Two marks in each other's columns, so that all sums stay; where none can, in other rows."""
    for (i, j), (k, m) in combinations(np.argwhere(right), 2):
        if m <= i and not right[i, m] and not right[k, j]:
            moved = right.copy()
            moved[[i, k], [j, m]] = False
            moved[[i, k], [m, j]] = True
            return moved
    return _other_rows(right)


def _shifted_matches(tokens):
    """Behind every copy, in the future, too."""
    marked = np.zeros((len(tokens), len(tokens)), dtype=bool)
    marked[:, 1:] = tokens[:, None] == tokens[:-1]
    return marked


TEXT = np.array([5, 7, 5, 7, 7, 3, 5])


def _compares(tokens=TEXT, look=lambda marked: marked):
    def test(mark):
        result = look(np.asarray(mark(np.array(tokens))))
        assert np.array_equal(result, look(_by_arrays(tokens)))

    return test


def _runs(mark):
    assert mark(TEXT) is not None


def _is_square(mark):
    assert np.shape(mark(TEXT)) == (7, 7)


def _marked_places(mark):
    assert mark(TEXT)[_by_arrays(TEXT)].all()


def _unmarked_places(mark):
    assert not mark(TEXT)[~_by_arrays(TEXT)].any()


induction_test = CatchFaults(
    level=3,
    trains="a test for a rule about earlier tokens",
    right={
        "loops": _marked,
        "arrays": _by_arrays,
        "the library's": _by_library,
    },
    faults=(
        Mistake(
            "marks the copies themselves",
            "Use a text in which a token comes back, and compare place by place with what you "
            "expect.",
            _wrong(lambda t, right: np.tril(_equal(t), -1)),
        ),
        Mistake(
            "looks one place before the copy",
            "Use a text in which a token comes back after another one.",
            _wrong(lambda t, right: np.pad(np.tril(_equal(t), -1)[:, 1:], ((0, 0), (0, 1)))),
        ),
        Mistake(
            "sees the future",
            "Of a token with a later copy the first row is wrong: it marks a place in the future. "
            "Such a row must be in your text, and so must the places without a mark.",
            _wrong(lambda t, right: _shifted_matches(t)),
        ),
        Mistake(
            "wraps around the end",
            "np.roll puts the last token before the first one. Use a text whose last token stands "
            "in it before.",
            _wrong(lambda t, right: _wrapped(t)),
        ),
        Mistake(
            "first copy only",
            "Of a token that stands three times one place is missing. Use such a text, and ask "
            "for every mark.",
            _wrong(lambda t, right: _only(t, right, 0)),
        ),
        Mistake(
            "last copy only",
            "Of a token that stands three times one place is missing. Use such a text, and ask "
            "for every mark.",
            _wrong(lambda t, right: _only(t, right, -1)),
        ),
        Mistake(
            "not its own place",
            "The same token twice in a row: the second copy stands behind the first, and may be "
            "looked at. Use such a text.",
            _wrong(lambda t, right: np.tril(right, -1)),
        ),
        Mistake(
            "queries and keys swapped",
            "Compare place by place, not sums: this one is transposed.",
            _wrong(lambda t, right: right.T),
        ),
        Mistake(
            "nothing marked",
            "Use a text in which a token comes back.",
            _wrong(lambda t, right: np.zeros_like(right)),
        ),
        Mistake(
            "everything before marked",
            "Use a text with several tokens, and look at the places without a mark as well.",
            _wrong(lambda t, right: np.tril(np.ones_like(right)) & (np.arange(len(t)) > 0)),
        ),
        Mistake(
            "marks at other places",
            "The sums of the rows or of the columns are right here, the places are not. Compare "
            "place by place.",
            _wrong(lambda t, right: _exchanged(right)),
        ),
    ),
    mistakes=(
        Mistake(
            "an assertion that no fault breaks",
            "Every fault returns a square of the right size. Compare the marks with those that "
            "you expect.",
            _runs,
            _is_square,
        ),
        Mistake(
            "a text without a token that comes back",
            "Then nothing is marked, and most faults mark nothing either.",
            _compares((1, 2, 3, 4)),
        ),
        Mistake(
            "no token three times",
            "A version that knows one copy only passes. Let a token stand three times.",
            _compares((5, 7, 7, 3, 5)),
        ),
        Mistake(
            "no token twice in a row",
            "A version that never looks at its own place passes. Let a token stand twice in a row.",
            _compares((5, 7, 5, 3, 5)),
        ),
        Mistake(
            "one token only",
            "All tokens are equal, so every place before is right. Use several tokens.",
            _compares((4, 4, 4, 4)),
        ),
        Mistake(
            "number of marks only",
            "A transposed result has as many marks. Compare place by place.",
            _compares(look=np.sum),
        ),
        Mistake(
            "marked places only",
            "A version that marks too much passes. Compare every place, True and False alike.",
            _marked_places,
        ),
        Mistake(
            "unmarked places only",
            "A version that marks too little passes. Compare every place, True and False alike.",
            _unmarked_places,
        ),
        Mistake(
            "sums of the rows only",
            "Marks in other columns have the same sums. Compare place by place.",
            _compares(look=lambda marked: marked.sum(axis=1)),
        ),
        Mistake(
            "sums of the columns only",
            "Marks at other places have the same sums. Compare place by place.",
            _compares(look=lambda marked: marked.sum(axis=0)),
        ),
        Mistake(
            "last row only",
            "Look at all rows: a fault may show in the first ones.",
            _compares(look=lambda marked: marked[-1]),
        ),
        Mistake(
            "first rows only",
            "The first rows have hardly any marks. Look at all rows.",
            _compares(look=lambda marked: marked[:2]),
        ),
    ),
    hints=(
        "Choose a short text and mark its places by hand: behind each earlier copy of the row's "
        "own token.",
        "One token should stand three times, another twice in a row, and the last token should "
        "stand before as well.",
        "For the text 5 7 5 7 7 3 5, row 4 (the third 7) is marked at columns 2 and 4. Write the "
        "whole square, or loop over i and j by the definition, and compare with np.array_equal.",
    ),
)

EXERCISES = {
    "table_weight": table_weight,
    "key_scores": key_scores,
    "reverse": reverse,
    "sort": sort,
    "induction_test": induction_test,
}
