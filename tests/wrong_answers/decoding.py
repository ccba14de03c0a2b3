"""Answers to the exercises of chapter 14: right ones, known mistakes written anew, new ones."""

import contextlib
import math

import numpy as np

# ---------------------------------------------------------------------------- cache_size

CACHE_SIZE = {
    "query heads counted": [2048, 2048.0],
    "a factor of 2 is missing": [256, np.int64(256)],
    "two factors of 2 are missing": [128.0],
    "a factor of 2 too many": [1024],
    "a factor of 8 too many": [4096],
    "one layer alone": [16],
    "a factor of 8 is missing": [64],
    "queries stored as well": [768, 1280],
    "one position alone": [0.125],
    "bytes, not MiB": [536_870_912],
    "KiB or GiB, not MiB": [524_288, 0.5],
    "megabytes of a million bytes": [536.87, 536.9, 537],
}
CACHE_SIZE_RIGHT = [512, 512.0, np.float32(512), np.array(512)]
CACHE_SIZE_NEW = [
    0, 1, 2, 4, 32, 100, 500, 510, 512.4, 530, -512, 8192, math.nan, math.inf,
    (512,), [512], "512", True,
]  # fmt: skip

# ---------------------------------------------------------------------------- cached_step


def by_loop(
    add_key=lambda q, k: k, add_value=lambda v: v, keep=lambda n: range(n),
    scale=math.sqrt, weigh=None,
):  # fmt: skip
    """One score after the other; `keep` says which of the n keys take part."""

    def function(x, keys, values, w_q, w_k, w_v):
        query, key, value = (np.einsum("ij,j->i", w, x) for w in (w_q, w_k, w_v))
        keys = [*keys, add_key(query, key)]
        values = [*values, add_value(value)]
        chosen = list(keep(len(keys)))
        scores = [float(np.dot(query, keys[i])) / scale(len(query)) for i in chosen]
        if weigh is None:
            e = [math.exp(s - max(scores)) for s in scores]
            shares = [number / sum(e) for number in e]
        else:
            shares = weigh(scores)
        return sum(w * values[i] for w, i in zip(shares, chosen, strict=True))

    return function


def only_old(x, keys, values, w_q, w_k, w_v):
    if not len(keys):
        return np.zeros(len(w_v))
    e = np.exp(keys @ (w_q @ x) / np.sqrt(keys.shape[1]))
    return (e / e.sum()) @ values


def only_old_or(first):
    def function(x, keys, values, w_q, w_k, w_v):
        if not len(keys):
            return first(w_v @ x)
        return only_old(x, keys, values, w_q, w_k, w_v)

    return function


def only_old_that_fails(x, keys, values, w_q, w_k, w_v):
    e = np.exp(keys @ (w_q @ x) / np.sqrt(keys.shape[1]))
    return np.average(values, axis=0, weights=e)


def with_rows(rows_of):
    """Attention to the keys and values that `rows_of` makes of the cache and the new rows."""

    def function(x, keys, values, w_q, w_k, w_v):
        keys, values = rows_of(keys, values, w_k @ x, w_v @ x)
        e = np.exp(keys @ (w_q @ x) / math.sqrt(len(w_q)))
        return values.T @ (e / e.sum())

    return function


def in_place_of_last(keys, values, key, value):
    return np.r_[keys[:-1], [key]], np.r_[values[:-1], [value]]


def without_oldest(keys, values, key, value):
    return np.r_[keys[1:], [key]], np.r_[values[1:], [value]]


def key_in_front(keys, values, key, value):
    return np.r_[[key], keys], np.r_[values, [value]]


def keys_twice(keys, values, key, value):
    return (np.r_[keys, [key]],) * 2


def by_width(width):
    """The divisor is the root of a width that `width` takes from x and values."""

    def function(x, keys, values, w_q, w_k, w_v):
        root = math.sqrt(width(x, values))
        return by_loop(scale=lambda d: root)(x, keys, values, w_q, w_k, w_v)

    return function


def of_length(x, keys, values, w_q, w_k, w_v):
    return by_loop(scale=lambda d: math.sqrt(len(keys) + 1))(x, keys, values, w_q, w_k, w_v)


def one_at_the_largest(scores):
    return [float(i == int(np.argmax(scores))) for i in range(len(scores))]


right_step = by_loop()

# fmt: off
CACHED_STEP = {
    "the token does not see itself": [
        only_old, only_old_or(np.zeros_like), only_old_or(lambda v: 1 * v), only_old_that_fails,
    ],
    "the newest token of the cache is lost": [with_rows(in_place_of_last)],
    "the oldest token of the cache is lost": [
        with_rows(without_oldest), by_loop(keep=lambda n: range(min(1, n - 1), n)),
    ],
    "keys and values in different orders": [with_rows(key_in_front)],
    "keys averaged": [with_rows(keys_twice)],
    "divided by the root of another width": [
        by_width(lambda x, values: values.shape[1]), by_width(lambda x, values: len(x)),
    ],
    "the weights do not add to 1": [
        by_loop(weigh=lambda s: [math.exp(x) for x in s]),
        by_loop(weigh=lambda s: [math.exp(x - max(s)) for x in s]),
    ],
    "each weight is 1": [by_loop(weigh=lambda s: [x / x for x in np.exp(s)])],
    "the token sees itself only": [by_loop(keep=lambda n: [n - 1])],
    "no scale": [by_loop(scale=lambda d: 1)],
    "divided by the root of the number of keys": [of_length],
    "divided by the width, not its root": [by_loop(scale=lambda d: d)],
    "the top-left mask": [by_loop(keep=lambda n: [0])],
    "the largest score alone": [by_loop(weigh=one_at_the_largest)],
    "no softmax": [by_loop(weigh=lambda scores: scores)],
    "the mean of all values": [by_loop(weigh=lambda s: [1 / len(s)] * len(s))],
    "query and key matrix swapped": [
        lambda x, k, v, w_q, w_k, w_v: right_step(x, k, v, w_k, w_q, w_v)
    ],
    "the query stored as the key": [by_loop(add_key=lambda q, k: q)],
    "the new key as zeros": [by_loop(add_key=lambda q, k: np.zeros_like(k))],
    "the new value as zeros": [by_loop(add_value=np.zeros_like)],
}
# fmt: on


def new_in_front(x, keys, values, w_q, w_k, w_v):
    keys, values = np.insert(keys, 0, w_k @ x, axis=0), np.insert(values, 0, w_v @ x, axis=0)
    e = np.exp(keys @ (w_q @ x) / np.sqrt(len(w_q)))
    return e @ values / e.sum()


CACHED_STEP_RIGHT = [right_step, new_in_front]
CACHED_STEP_NEW = [
    by_loop(scale=lambda d: 2 * math.sqrt(d)),
    by_loop(scale=lambda d: -math.sqrt(d)),
    by_loop(keep=lambda n: range(n - 1, max(n - 3, -1), -1)),
    by_loop(add_value=lambda v: 2 * v),
    by_loop(add_key=lambda q, k: k + q),
    by_loop(keep=lambda n: range(max(n - 4, 0), n)),
    with_rows(lambda keys, values, key, value: (np.r_[keys, [value[: len(key)]]], values)),
    lambda *a: right_step(*a) + 1e-3,
    lambda *a: right_step(*a)[None],
    lambda *a: right_step(*a).tolist(),
    lambda *a: right_step(*a).round(1),
    lambda *a: right_step(*a)[::-1] * 1.5,
    lambda x, keys, values, w_q, w_k, w_v: values[0],
    lambda x, keys, values, w_q, w_k, w_v: w_q @ x,
    lambda x, keys, values: x,
    lambda *a: None,
]

# ---------------------------------------------------------------------------- empty_slots


def slots(take, weigh=None, scale=math.sqrt):
    """Attention over the slots that `take(capacity, length)` names, one after the other."""

    def function(query, keys, values, length):
        chosen = list(take(len(keys), length))
        scores = [float(np.dot(query, keys[i])) / scale(len(query)) for i in chosen]
        e = [math.exp(s) for s in scores]
        shares = [number / sum(e) for number in e] if weigh is None else weigh(e, chosen, length)
        return sum(w * values[i] for w, i in zip(shares, chosen, strict=True))

    return function


def every(capacity, length):
    return range(capacity)


def masked(query, keys, values, length):
    scores = keys @ query / np.sqrt(len(query))
    scores[length:] = -np.inf
    e = np.exp(scores - scores.max())
    return e / e.sum() @ values


def divided_again(query, keys, values, length):
    """The softmax of all slots, its empty ones set to 0, the rest divided by their sum."""
    scores = keys @ query / np.sqrt(len(query))
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    weights[length:] = 0
    return weights / weights.sum() @ values


def where_not_zero(query, keys, values, length):
    return slots(lambda c, n: [i for i, key in enumerate(keys) if any(key)])(
        query, keys, values, length
    )


def score_of_zero_hidden(query, keys, values, length):
    scores = keys @ query / np.sqrt(len(query))
    scores = np.where(scores == 0, -np.inf, scores)
    e = np.exp(scores - scores.max())
    return e / e.sum() @ values


def one_for_each_empty_slot(query, keys, values, length):
    e = np.exp(keys @ query / np.sqrt(len(query)))
    return sum(e[i] * values[i] for i in range(length)) / (e.sum() - (len(keys) - length))


def values_from_the_end(query, keys, values, length):
    return masked(query, keys[:length], values[-length:], length)


def filled_with(number):
    def function(query, keys, values, length):
        scores = np.where(np.arange(len(keys)) < length, keys @ query / len(query) ** 0.5, number)
        e = np.exp(scores)
        return e / e.sum() @ values

    return function


def the_others(query, keys, values, length):
    if length == len(keys):
        return np.zeros(values.shape[1])
    return masked(query, keys[length:], values[length:], len(keys))


def the_others_or_all(query, keys, values, length):
    rest = length if length < len(keys) else 0
    return masked(query, keys[rest:], values[rest:], len(keys))


right_slots = slots(lambda capacity, length: range(length))

# fmt: off
EMPTY_SLOTS = {
    "the fault is still there: empty slots get weight": [slots(every)],
    "weights set to 0 after the softmax": [
        slots(every, lambda e, i, n: [x / sum(e) * (j < n) for x, j in zip(e, i, strict=True)]),
    ],
    "scores set to 0": [filled_with(0.0)],
    "taken out after the softmax": [divided_again],
    "a number that is low here only": [
        filled_with(-10.0), filled_with(-20.0), filled_with(-30.0), filled_with(-50.0),
        filled_with(-100.0),
    ],
    "slots guessed from their numbers": [where_not_zero, score_of_zero_hidden],
    "zeros assumed in the empty slots": [one_for_each_empty_slot],
    "keys from the front, values from the end": [values_from_the_end],
    "divided by the width, not its root": [slots(lambda c, n: range(n), scale=lambda d: d)],
    "no softmax": [
        slots(lambda c, n: range(n), lambda e, i, n: [math.log(x) for x in e]),
    ],
    "the last token left out": [slots(lambda c, n: range(max(n - 1, 1)))],
    "one empty slot seen": [slots(lambda c, n: range(min(n + 1, c)))],
    "the first slot alone": [slots(lambda c, n: [0])],
    "the last token alone": [slots(lambda c, n: [n - 1])],
    "the mask upside down": [the_others, the_others_or_all],
    "no scale": [slots(lambda c, n: range(n), scale=lambda d: 1)],
    "slots from the end": [slots(lambda c, n: range(c - n, c))],
    "the mean of the tokens": [slots(lambda c, n: range(n), lambda e, i, n: [1 / n] * n)],
}
# fmt: on
EMPTY_SLOTS_RIGHT = [right_slots, masked, filled_with(-1e9)]
EMPTY_SLOTS_NEW = [
    filled_with(-1.0),
    lambda query, keys, values, length: masked(query, keys, values, length) * len(keys) / length,
    lambda query, keys, values, length: masked(
        *(x.astype(np.float32) for x in (query, keys, values)), length
    ),
    filled_with(1.0),
    slots(lambda c, n: range(n), scale=lambda d: d + 1),
    slots(lambda c, n: [*range(n), 0]),
    slots(lambda c, n: range(0, n, 2)),
    lambda *a: right_slots(*a) + 1e-3,
    lambda *a: right_slots(*a)[None],
    lambda *a: right_slots(*a).tolist(),
    lambda *a: right_slots(*a).round(2),
    lambda *a: -right_slots(*a),
    lambda query, keys, values, length: values.sum(axis=0),
    lambda query, keys, values, length: values.mean(axis=0),
    lambda query, keys, values, length: keys[0],
    lambda query, keys, values: values[0],
    lambda query, keys, values, length: values[length],
]

# ---------------------------------------------------------------------------- shared_keys


def by_head(place, values_place=None, scale=lambda q, k: math.sqrt(q.shape[1])):
    """Head by head; `place(h, heads, shared)` is the key/value head of query head h."""

    def function(query, keys, values):
        heads, shared = len(query), len(keys)
        rows = []
        for h in range(heads):
            at = place(h, heads, shared)
            at_values = at if values_place is None else values_place(h, heads, shared)
            e = np.exp([query[h] @ key / scale(query, keys) for key in keys[at]])
            rows.append(sum(w * v for w, v in zip(e / e.sum(), values[at_values], strict=True)))
        return np.array(rows)

    return function


def neighbours(h, heads, shared):
    return h * shared // heads


def dealt(h, heads, shared):
    return list(range(shared))[h % shared]


right_shared = by_head(neighbours)


def weighed(weigh):
    """Head by head, with weights that `weigh` makes of the scores."""

    def function(query, keys, values):
        group = len(query) // len(keys)
        scores = [keys[h // group] @ q / math.sqrt(len(q)) for h, q in enumerate(query)]
        return np.array([weigh(s) @ values[h // group] for h, s in enumerate(scores)])

    return function


def one_query(query, keys, values):
    group = len(query) // len(keys)
    return right_shared(np.repeat(query[::group], group, axis=0), keys, values)


def softmax_of_group(query, keys, values):
    group = len(query) // len(keys)
    rows = []
    for number, key in enumerate(keys):
        e = np.exp(query[number * group :][:group] @ key.T / math.sqrt(query.shape[1]))
        rows.append(e / e.sum() @ values[number])
    return np.concatenate(rows)


def clipped(h, heads, shared):
    return min(h // shared, shared - 1)


def repeated(query, keys, values, over=-1):
    group = len(query) // len(keys)
    keys, values = np.repeat(keys, group, axis=0), np.repeat(values, group, axis=0)
    e = np.exp((keys @ query[:, :, None])[..., 0] / math.sqrt(query.shape[1]))
    return ((e / e.sum(axis=over, keepdims=True))[:, None] @ values)[:, 0]


def grouped_queries(query, keys, values):
    folded = query.reshape(len(keys), -1, query.shape[1])
    e = np.exp(folded @ keys.swapaxes(1, 2) / math.sqrt(query.shape[1]))
    return (e / e.sum(-1, keepdims=True) @ values).reshape(len(query), -1)


def of_means(query, keys, values):
    return right_shared(query, sum(keys)[None] / len(keys), sum(values)[None] / len(values))


def queries_averaged(query, keys, values):
    group = len(query) // len(keys)
    query = np.array(
        [query[h // group * group :][:group].sum(0) / group for h in range(len(query))]
    )
    return right_shared(query, keys, values)


SHARED_KEYS = {
    "heads dealt out in turn": [by_head(dealt)],
    "the first key/value head for all": [by_head(lambda h, heads, shared: 0)],
    "groups in reverse": [lambda q, k, v: right_shared(q, k[::-1], v[::-1])],
    "keys shared, values dealt out in turn": [by_head(neighbours, dealt)],
    "values shared, keys dealt out in turn": [by_head(dealt, neighbours)],
    "values of the first head for all": [by_head(neighbours, lambda h, heads, shared: 0)],
    "one group a head until they run out": [by_head(lambda h, heads, n: h if h < n else n - 1)],
    "divided by the number of key/value heads": [
        by_head(lambda h, heads, shared: h // shared),
        by_head(clipped),
        by_head(lambda h, heads, shared: (h // shared) % shared),
    ],
    "the first query of a group for all": [one_query],
    "one softmax for a group": [softmax_of_group],
    "no softmax": [weighed(lambda s: s)],
    "the weights do not add to 1": [weighed(np.exp), weighed(lambda s: np.exp(s - max(s)))],
    "the mean of the values": [weighed(lambda s: np.ones(len(s)) / len(s))],
    "divided by the width, not its root": [by_head(neighbours, scale=lambda q, k: q.shape[1])],
    "the mean of all key/value heads": [of_means],
    "one query for a group": [queries_averaged],
    "softmax over the heads": [lambda q, k, v: repeated(q, k, v, over=0)],
    "no scale": [by_head(neighbours, scale=lambda q, k: 1)],
    "divided by the root of the full width": [
        by_head(neighbours, scale=lambda q, k: math.sqrt(q.shape[0] * q.shape[1])),
    ],
    "divided by the root of the number of keys": [
        by_head(neighbours, scale=lambda q, k: math.sqrt(k.shape[1])),
    ],
}
SHARED_KEYS_RIGHT = [right_shared, repeated, grouped_queries]
SHARED_KEYS_NEW = [
    by_head(lambda h, heads, shared: shared - 1),
    weighed(lambda s: np.eye(len(s))[s.argmax()]),
    weighed(lambda s: np.eye(len(s))[0]),
    by_head(neighbours, lambda h, heads, shared: shared - 1),
    by_head(neighbours, scale=lambda q, k: -math.sqrt(q.shape[1])),
    lambda q, k, v: right_shared(q[::-1], k, v),
    lambda q, k, v: right_shared(q, k, v)[::-1] * 1.1,
    lambda q, k, v: right_shared(q, k, v) + 1e-3,
    lambda q, k, v: right_shared(q, k, v)[None],
    lambda q, k, v: right_shared(q, k, v).tolist(),
    lambda q, k, v: right_shared(q, k, v).round(2),
    lambda q, k, v: right_shared(q, k, v).ravel(),
    lambda q, k, v: right_shared(q, k, v)[: len(k)] * 2,
    lambda q, k, v: v.mean(axis=1),
    lambda q, k, v: q,
    lambda q, k: q,
]

# ---------------------------------------------------------------------------- cache_test


def causal(x, w_q, w_k, w_v):
    rows = []
    for n in range(len(x)):
        e = np.exp((x[: n + 1] @ w_k.T) @ (w_q @ x[n]) / math.sqrt(len(w_q)))
        rows.append(e / e.sum() @ (x[: n + 1] @ w_v.T))
    return np.array(rows)


def matrices(e=3, d=2, v=4):
    rng = np.random.default_rng(5)
    return rng.normal(size=(d, e)), rng.normal(size=(d, e)), rng.normal(size=(v, e))


def compare(length, first, chosen=None, d=2, rng=3):
    def test(decode):
        x, w = np.random.default_rng(rng).normal(size=(length, 3)), matrices(d=d)
        got, want = decode(x, first, *w), causal(x, *w)
        for row in range(length) if chosen is None else chosen:
            np.testing.assert_allclose(got[row], want[row], atol=1e-9)

    return test


def by_changed_future(decode):
    """No earlier row may move, and every later one must be right."""
    x, w = np.random.default_rng(0).normal(size=(9, 3)), matrices()
    for first in (2, 4):
        assert np.allclose(decode(x, first, *w), causal(x, *w))


def only_axes(decode):
    assert len(decode(np.ones((7, 3)), 3, *matrices())) == 7
    assert decode(np.ones((7, 3)), 3, *matrices()).shape[1] == 4


def of_zeros(decode):
    assert not decode(np.zeros((7, 3)), 3, *matrices()).any()


def of_copies(decode):
    w = matrices()
    x = np.tile(np.random.default_rng(0).normal(size=3), (7, 1))
    assert np.allclose(decode(x, 3, *w), x @ w[2].T)


def of_both(look):
    """Compares what `look` makes of the output and of the right one."""

    def test(decode):
        x, w = np.random.default_rng(3).normal(size=(7, 3)), matrices()
        assert np.allclose(look(decode(x, 3, *w)), look(causal(x, *w)))

    return test


def largest_difference(decode):
    x, w = np.random.default_rng(3).normal(size=(7, 3)), matrices()
    assert (decode(x, 3, *w) - causal(x, *w)).max() < 1e-9


def same_for_each_prompt(decode):
    x, w = np.random.default_rng(3).normal(size=(7, 3)), matrices()
    results = [decode(x, first, *w) for first in range(1, 8)]
    assert all(np.allclose(one, results[0]) for one in results)


def any_right(decode):
    x, w = np.random.default_rng(3).normal(size=(7, 3)), matrices()
    assert np.isclose(decode(x, 3, *w), causal(x, *w)).any()


def no_nan(decode):
    assert not np.isnan(decode(np.random.default_rng(3).normal(size=(7, 3)), 3, *matrices())).any()


def loose(tolerance, scale=1.0):
    def test(decode):
        x, w = scale * np.random.default_rng(3).normal(size=(7, 3)), matrices()
        assert np.abs(decode(x, 3, *w) - causal(x, *w)).max() < tolerance

    return test


CACHE_TEST = {
    "an assertion that no fault breaks": [
        only_axes,
        of_zeros,
        any_right,
        no_nan,
        compare(1, 1),
    ],
    "equal tokens": [of_copies],
    "no result of your own": [same_for_each_prompt],
    "the whole text as prompt": [compare(7, 7)],
    "the mask of the prompt not seen": [
        compare(7, 1),
        compare(7, 3, [3, 4, 5, 6]),
        compare(7, 3, [6]),
    ],
    "one token decoded": [compare(7, 6)],
    "only the prompt's rows": [compare(7, 3, [0, 1, 2])],
    "only the first new token": [compare(7, 3, [3])],
    "keys of width 1": [compare(7, 3, d=1)],
    "four tokens in all": [compare(4, 2)],
    "right numbers at wrong places pass": [of_both(np.sum)],
    "small or negative errors pass": [largest_difference, loose(0.5)],
    "the last column not compared": [of_both(lambda y: y[:, 0]), of_both(lambda y: y[:, :3])],
    "a row left out": [
        compare(7, 3, [0, 6]),
        compare(7, 3, [1, 6]),
        compare(7, 3, [0, 2, 4, 6]),
        compare(7, 3, [1, 3, 5]),
    ],
}
CACHE_TEST_RIGHT = [compare(7, 3), compare(8, 2), by_changed_future]


def rejects_all(decode):
    assert decode(np.ones((7, 3)), 3, *matrices()) is None


def prints(decode):
    x, w = np.random.default_rng(3).normal(size=(7, 3)), matrices()
    print(np.allclose(decode(x, 3, *w), causal(x, *w)))


def returns(decode):
    x, w = np.random.default_rng(3).normal(size=(7, 3)), matrices()
    return np.allclose(decode(x, 3, *w), causal(x, *w))


def exact(decode):
    x, w = np.random.default_rng(3).normal(size=(7, 3)), matrices()
    assert (decode(x, 3, *w) == causal(x, *w)).all()


def full_attention(decode):
    x, w = np.random.default_rng(3).normal(size=(7, 3)), matrices()
    e = np.exp((x @ w[0].T) @ (x @ w[1].T).T / math.sqrt(2))
    assert np.allclose(decode(x, 3, *w), e / e.sum(1, keepdims=True) @ (x @ w[2].T))


def wrong_call(decode):
    decode(np.ones((7, 3)))


def never(decode):
    assert causal(np.ones((2, 3)), *matrices()).shape == (2, 4)


def swallowed(decode):
    with contextlib.suppress(AssertionError):
        compare(7, 3)(decode)


def another_error(decode):
    try:
        compare(7, 3)(decode)
    except AssertionError as error:
        raise ValueError("wrong") from error


CACHE_TEST_NEW = [
    rejects_all, prints, returns, exact, full_attention, wrong_call, never, swallowed,
    another_error, compare(7, 5, [5]), compare(6, 2, [3]), 3, of_both(lambda y: sum(y[0])),
    loose(2.0),
]  # fmt: skip

ANSWERS = {
    "cache_size": (CACHE_SIZE_RIGHT, CACHE_SIZE, CACHE_SIZE_NEW),
    "cached_step": (CACHED_STEP_RIGHT, CACHED_STEP, CACHED_STEP_NEW),
    "empty_slots": (EMPTY_SLOTS_RIGHT, EMPTY_SLOTS, EMPTY_SLOTS_NEW),
    "shared_keys": (SHARED_KEYS_RIGHT, SHARED_KEYS, SHARED_KEYS_NEW),
    "cache_test": (CACHE_TEST_RIGHT, CACHE_TEST, CACHE_TEST_NEW),
}
