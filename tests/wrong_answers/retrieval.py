"""Answers to the exercises of chapter 8: right ones, listed mistakes written anew, new mistakes."""

import math
from operator import floordiv

import numpy as np
from wrong_answers.lookup import loop_softmax, rows

# ---------------------------------------------------------------------------- table_weight

TABLE_WEIGHT = {
    "only one other slot counted": [0.9933, np.float64(0.993307)],
    "the bound of chapter 1": [0.8989],
    "weight of one of the others": [0.00612, 0.0918],
    "no exponential": [5 / 20, 0.3125, 6 / 21],
    "equal shares": [0.0625, 0.9375],
    "a ratio of exponentials, no weight": [np.exp(5) / 15, 148.413, 15 * math.exp(-5), 0.00674],
    "a percentage": [90.82],
    "two decimals or fewer": [0.91, 0.9],
    "everything": [1.0, np.int64(1)],
    "divided by a root once more": [0.1108, 0.1887],
    "one slot too many or too few": [0.9027, 0.9138],
}
TABLE_WEIGHT_RIGHT = [0.9082, 0.908, np.float64(0.90820), 1 / (1 + 15 / math.e**5)]
TABLE_WEIGHT_NEW = [
    0.5, 0.95, 0.98, 0.0, 5, 16, -0.9082, 0.8, math.nan, "0.9082", (0.9082,), [0.9082], True, 0.92,
    0.909, 0.907, 32 / 47,
]  # fmt: skip

# ---------------------------------------------------------------------------- key_scores


def by_loops(width_of=lambda e, q: len(q), root=math.sqrt, queries=None, keys=None):
    """Every score alone, from Python numbers; `queries` and `keys` project one vector."""

    def linear(vector, weight):
        return [sum(a * b for a, b in zip(vector, row, strict=True)) for row in weight]

    def function(e, q, k):
        asked = [(queries or linear)(x, q) for x in e]
        stored = [(keys or linear)(x, k) for x in e]
        table = [[sum(a * b for a, b in zip(x, y, strict=True)) for y in stored] for x in asked]
        return np.array(table) / root(width_of(e, q))

    return function


right_scores = by_loops()

KEY_SCORES = {
    "the fault is still there: the matrices are not transposed": [
        lambda e, q, k: np.inner(np.matmul(e, q), np.matmul(e, k)) / np.sqrt(q.shape[0]),
    ],
    "only one matrix transposed": [
        lambda e, q, k: np.inner(np.inner(e, q), e @ k) / math.sqrt(len(q)),
    ],
    "not scaled": [by_loops(root=lambda n: 1)],
    "divided by the width, not by its root": [by_loops(root=lambda n: n)],
    "divided by the root of another size": [
        by_loops(width_of=lambda e, q: q.shape[1]),
        by_loops(width_of=lambda e, q: e.shape[0]),
    ],
    "always divided by 8": [by_loops(root=lambda n: 64**0.5)],
    "queries in the columns": [lambda e, q, k: right_scores(e, k, q)],
    "one matrix for both": [
        lambda e, q, k: right_scores(e, q, q),
        lambda e, q, k: right_scores(e, k, k),
    ],
    "softmax applied": [lambda e, q, k: rows(loop_softmax)(right_scores(e, q, k))],
    "embedding left out on one side": [
        lambda e, q, k: np.inner(e, np.inner(e, k)) / np.sqrt(q.shape[0]),
        lambda e, q, k: np.inner(np.inner(e, q), e) / np.sqrt(q.shape[0]),
    ],
    "no projection": [
        lambda e, q, k: np.inner(e, e) / math.sqrt(q.shape[0]),
        lambda e, q, k: np.inner(e, e),
    ],
    "the matrices alone": [lambda e, q, k: np.einsum("df,dg->fg", q, k) / np.sqrt(len(q))],
}
KEY_SCORES_RIGHT = [
    right_scores,
    lambda e, q, k: e @ q.T @ k @ e.T / np.sqrt(len(q)),
    lambda e, q, k: np.einsum("if,df,dg,jg->ij", e, q, k, e) / math.sqrt(len(q)),
]
KEY_SCORES_NEW = [
    lambda e, q, k: right_scores(e, q, k) + 1e-3,
    lambda e, q, k: 2 * right_scores(e, q, k),
    lambda e, q, k: -right_scores(e, q, k),
    lambda e, q, k: np.abs(right_scores(e, q, k)),
    lambda e, q, k: np.diag(np.diag(right_scores(e, q, k))),
    lambda e, q, k: np.diag(right_scores(e, q, k)),
    lambda e, q, k: right_scores(e, q, k)[::-1],
    lambda e, q, k: right_scores(e, q, k).round(1),
    lambda e, q, k: right_scores(e, q, k).argmax(axis=1),
    lambda e, q, k: right_scores(e, q, k)[None],
    lambda e, q, k: right_scores(e, q, k).tolist(),
    lambda e, q, k: e @ q.T,
    lambda e, q, k: np.exp(right_scores(e, q, k)),
    lambda e, q, k: None,
    lambda e, q, k: right_scores(e, -q, k).T,
    lambda e, q, k: (e @ q.T) * (e @ k.T),
    by_loops(root=lambda n: 4),
]

# ---------------------------------------------------------------------------- reverse


def by_places(centre, temperature=lambda t: t, score=lambda gap: -gap):
    def function(length, t):
        table = []
        for i in range(length):
            gaps = [abs(centre(i, length) - j) for j in range(length)]
            table.append(loop_softmax([score(gap) / temperature(t) for gap in gaps]))
        return np.array(table)

    return function


def backwards(i, n):
    return n - i - 1


right_reverse = by_places(backwards)


def distances(length):
    return np.array([[-abs(length - 1 - i - j) for j in range(length)] for i in range(length)])


def signed(length):
    return np.array([[length - 1 - i - j for j in range(length)] for i in range(length)])


def in_integers(divide):
    def function(length, t):
        scores = np.zeros((length, length), dtype=int)
        for i, j in np.ndindex(length, length):
            scores[i, j] = divide(-abs(length - 1 - i - j), t)
        return rows(loop_softmax)(scores)

    return function


REVERSE = {
    "the text forwards": [by_places(lambda i, n: i), lambda n, t: right_reverse(n, t)[::-1]],
    "one place off": [
        by_places(lambda i, n: n - i),
        by_places(lambda i, n: n - i - 2),
        by_places(lambda i, n: -i % n),
    ],
    "scores, no weights": [lambda n, t: distances(n) / t, lambda n, t: distances(n) * 1.0],
    "temperature left out": [by_places(backwards, lambda t: 1)],
    "temperature upside down": [by_places(backwards, lambda t: 1 / t)],
    "root of the temperature": [by_places(backwards, math.sqrt)],
    "no absolute value": [
        lambda n, t: rows(loop_softmax)(signed(n) / t),
        lambda n, t: rows(loop_softmax)(signed(n) / -t),
    ],
    "decimals of the scores lost": [in_integers(lambda s, t: s / t), in_integers(floordiv)],
    "the farthest key wins": [by_places(backwards, score=lambda gap: gap)],
    "squared distance": [by_places(backwards, score=lambda gap: -(gap**2))],
    "hard weights": [lambda n, t: np.array([[float(i + j == n - 1) for j in range(n)]
                                            for i in range(n)])],
    "one-hot positions compared": [by_places(backwards, score=lambda gap: float(gap == 0))],
    "softmax over the queries": [
        lambda n, t: np.array([loop_softmax(c) for c in (distances(n) / t).T.tolist()]).T,
    ],
    "softmax over everything": [
        lambda n, t: np.reshape(loop_softmax((distances(n) / t).ravel().tolist()), (n, n)),
    ],
}  # fmt: skip
REVERSE_RIGHT = [
    right_reverse,
    lambda n, t: by_places(lambda i, m: i)(n, t)[::-1],
    lambda n, t: rows(loop_softmax)(distances(n) / t),
]
REVERSE_NEW = [
    lambda n, t: right_reverse(n, t) + 1e-3,
    lambda n, t: right_reverse(n, 2 * t),
    lambda n, t: right_reverse(n, t) ** 2,
    lambda n, t: right_reverse(n, t**2),
    lambda n, t: (1 / (1 - distances(n) / t)) / (1 / (1 - distances(n) / t)).sum(1, keepdims=True),
    lambda n, t: right_reverse(n, t).astype(np.float32),
    lambda n, t: np.full((n, n), 1 / n),
    lambda n, t: right_reverse(n, t).argmax(axis=1),
    lambda n, t: right_reverse(n, t)[None],
    lambda n, t: right_reverse(n, t).tolist(),
    lambda n, t: right_reverse(n, t).round(1),
    lambda n, t: right_reverse(n + 1, t),
    lambda n, t: np.arange(n)[::-1],
    lambda n, t: np.exp(distances(n) / t),
    lambda n, t: None,
    lambda n: right_reverse(n, 1),
]

# ---------------------------------------------------------------------------- sort


def in_order(numbers):
    return sorted(range(len(numbers)), key=lambda i: numbers[i])


def ranks_of(numbers):
    return [in_order(numbers).index(i) for i in range(len(numbers))]


def by_ranks(ranks, temperature=lambda t: t, asked=None):
    """Loops over places and numbers; `ranks` gets a list of Python numbers."""

    def function(numbers, t):
        x = numbers.tolist()
        table = []
        for place in asked(x) if asked else range(len(x)):
            table.append(loop_softmax([-abs(place - r) / temperature(t) for r in ranks(x)]))
        return np.array(table)

    return function


def sort_distances(numbers):
    ranks = ranks_of(numbers.tolist())
    return np.array([[-abs(i - r) for r in ranks] for i in range(len(ranks))])


def sort_offsets(numbers):
    ranks = ranks_of(numbers.tolist())
    return np.array([[i - r for r in ranks] for i in range(len(ranks))])


right_sort = by_ranks(ranks_of)

SORT = {
    "argsort taken for the ranks": [by_ranks(in_order)],
    "equal numbers in any order": [
        by_ranks(lambda x: np.array(x).argsort().argsort().tolist()),
        by_ranks(lambda x: np.argsort(np.argsort(x), kind="stable").tolist()),
    ],
    "largest first": [
        lambda x, t: np.flipud(right_sort(x, t)),
        by_ranks(lambda x: ranks_of([-a for a in x])),
    ],
    "equal numbers with one rank": [
        by_ranks(lambda x: [sorted(x).index(a) for a in x]),
        by_ranks(lambda x: [sorted(set(x)).index(a) for a in x]),
        by_ranks(lambda x: [sum(b <= a for b in x) - 1 for a in x]),
    ],
    "last of equal numbers first": [by_ranks(lambda x: ranks_of(x[::-1])[::-1])],
    "queries and keys swapped": [
        by_ranks(lambda x: range(len(x)), asked=ranks_of),
        lambda x, t: np.transpose(right_sort(x, t)),
    ],
    "the numbers in place of the ranks": [by_ranks(lambda x: x)],
    "distances between numbers": [
        by_ranks(ranks_of, asked=ranks_of),
        by_ranks(lambda x: x, asked=lambda x: x),
        by_ranks(lambda x: x, asked=sorted),
    ],
    "squared distance": [
        lambda x, t: rows(loop_softmax)(-(sort_distances(x) ** 2) / t),
    ],
    "no absolute value": [
        lambda x, t: rows(loop_softmax)(sort_offsets(x) / t),
        lambda x, t: rows(loop_softmax)(sort_offsets(x) / -t),
    ],
    "root of the temperature": [by_ranks(ranks_of, math.sqrt)],
    "left in order": [by_ranks(lambda x: range(len(x)))],
    "ranks from 1": [by_ranks(lambda x: [r + 1 for r in ranks_of(x)])],
    "scores, no weights": [lambda x, t: sort_distances(x) / t],
    "temperature left out": [by_ranks(ranks_of, lambda t: 1)],
    "temperature upside down": [by_ranks(ranks_of, lambda t: 1 / t)],
    "hard weights": [lambda x, t: np.array([[float(i == j) for j in range(len(x))]
                                            for i in in_order(x.tolist())])],
    "softmax over the queries": [
        lambda x, t: np.array([loop_softmax(c) for c in (sort_distances(x) / t).T.tolist()]).T,
    ],
    "the farthest key wins": [lambda x, t: rows(loop_softmax)(sort_distances(x) / -t)],
}  # fmt: skip
SORT_RIGHT = [
    right_sort,
    lambda x, t: rows(loop_softmax)(sort_distances(x) / t),
    lambda x, t: by_ranks(lambda y: range(len(y)))(x, t)[:, ranks_of(x.tolist())],
]
SORT_NEW = [
    lambda x, t: right_sort(x, t) + 1e-3,
    lambda x, t: right_sort(x, t)[:, ::-1],
    lambda x, t: right_sort(x, 2 * t),
    lambda x, t: right_sort(x, t**2),
    lambda x, t: right_sort(x, t) ** 2,
    lambda x, t: np.roll(right_sort(x, t), 1, axis=0),
    lambda x, t: right_sort(x, t)[None],
    lambda x, t: right_sort(x, t).tolist(),
    lambda x, t: right_sort(x, t) @ x,
    lambda x, t: np.sort(x),
    lambda x, t: np.ones((len(x), len(x))) / len(x),
    lambda x, t: right_sort(np.abs(x), t),
    lambda x, t: x.sort(),
    lambda x, t: undefined_name,
    lambda x: right_sort(x, 1),
]

# ---------------------------------------------------------------------------- induction_test


def expected(tokens):
    n = len(tokens)
    places = [(i, j) for i in range(n) for j in range(1, i + 1) if tokens[j - 1] == tokens[i]]
    marked = np.zeros((n, n), dtype=bool)
    for place in places:
        marked[place] = True
    return marked


GOOD = np.array([1, 2, 1, 1, 3, 2, 1])


def compares(tokens=GOOD, look=lambda marked: marked):
    def test(mark):
        result = np.asarray(mark(np.array(tokens)))
        np.testing.assert_array_equal(look(result), look(expected(tokens)))

    return test


def good_by_hand(mark):
    marked = np.asarray(mark(np.array([4, 4, 9, 4])))
    assert np.argwhere(marked).tolist() == [[1, 1], [3, 1], [3, 2]]


def marked_places(tokens):
    def test(mark):
        result = np.asarray(mark(np.array(tokens)))
        for place in np.argwhere(expected(tokens)):
            assert result[tuple(place)]

    return test


def unmarked_places(tokens):
    def test(mark):
        assert not (np.asarray(mark(np.array(tokens))) & ~expected(tokens)).any()

    return test


def only_exists(mark):
    assert len(mark(GOOD)) == len(GOOD)


def only_two_axes(mark):
    assert np.asarray(mark(GOOD)).ndim == 2


def both_sums(mark):
    compares(look=lambda marked: marked.sum(axis=0))(mark)
    compares(look=lambda marked: marked.sum(axis=1))(mark)


def over_several_texts(mark):
    for tokens in ([1, 2, 1, 2, 1], [3, 3, 3], [0, 1, 2, 3, 0]):
        compares(tokens)(mark)


INDUCTION_TEST = {
    "an assertion that no fault breaks": [only_exists, only_two_axes],
    "a text without a token that comes back": [compares([6, 2, 9, 4, 3])],
    "no token three times": [compares([1, 2, 2, 3, 1])],
    "no token twice in a row": [compares([1, 2, 1, 3, 1])],
    "one token only": [compares([2, 2, 2])],
    "number of marks only": [compares(look=np.sum)],
    "marked places only": [marked_places([5, 7, 5, 7, 7, 3, 5])],
    "unmarked places only": [unmarked_places([5, 7, 5, 7, 7, 3, 5])],
    "sums of the rows only": [compares([5, 7, 5, 7, 7, 3, 5], lambda marked: marked.sum(1))],
    "sums of the columns only": [
        compares(look=lambda marked: np.count_nonzero(marked, axis=0)),
        both_sums,
    ],
    "last row only": [compares(look=lambda marked: marked[-1])],
    "first rows only": [compares(look=lambda marked: marked[:2])],
}
INDUCTION_TEST_RIGHT = [
    compares(),
    good_by_hand,
    compares([3, 8, 3, 3, 8, 8, 3]),
    compares([-1, 0, -1, 0, 0, 2, -1]),
    compares(list("abacaab")),
    compares([1, 2, 1, 1]),
    over_several_texts,
]


def wants_the_copies(mark):
    assert np.array_equal(mark(GOOD), np.tril(GOOD[:, None] == GOOD, -1))


def wants_the_transposed(mark):
    assert np.array_equal(np.asarray(mark(GOOD)), expected(GOOD).T)


def wants_a_list(mark):
    assert mark(GOOD) == expected(GOOD).tolist()


def never_calls(mark):
    assert expected(GOOD).any()


def no_assert(mark):
    np.array_equal(mark(GOOD), expected(GOOD))


def swallows(mark):
    try:
        assert np.array_equal(mark(GOOD), expected(GOOD))
    except AssertionError:
        print("wrong")


def stops(mark):
    assert mark(GOOD).shape == undefined_name


def two_arguments(mark):
    assert mark(GOOD, 7).shape == (7, 7)


def raises_another(mark):
    if not np.array_equal(mark(GOOD), expected(GOOD)):
        raise ValueError("wrong")


def wants_everything(mark):
    assert np.asarray(mark(GOOD)).all()


INDUCTION_TEST_NEW = [
    wants_the_copies, wants_the_transposed, wants_a_list, never_calls, no_assert, swallows, stops,
    two_arguments, raises_another, wants_everything, lambda mark: mark(GOOD),
]  # fmt: skip

ANSWERS = {
    "table_weight": (TABLE_WEIGHT_RIGHT, TABLE_WEIGHT, TABLE_WEIGHT_NEW),
    "key_scores": (KEY_SCORES_RIGHT, KEY_SCORES, KEY_SCORES_NEW),
    "reverse": (REVERSE_RIGHT, REVERSE, REVERSE_NEW),
    "sort": (SORT_RIGHT, SORT, SORT_NEW),
    "induction_test": (INDUCTION_TEST_RIGHT, INDUCTION_TEST, INDUCTION_TEST_NEW),
}
