"""Answers to the exercises of chapter 9: right ones, listed mistakes anew, new mistakes."""

import math

import numpy as np
import torch

# ---------------------------------------------------------------------------- share

SHARE = {
    "the two numbers swapped": [(1 / 12, 1 / 5), (0.083, 0.2)],
    "no difference: the mask hides nothing": [(1 / 12, 1 / 12), (0.083, 0.083)],
    "no difference: padding gets nothing anyway": [(0.2, 0.2)],
    "all the weight for one word": [(1.0, 1 / 12), (1, 0.2), (1, 1)],
    "only the padding counted": [(0.2, 1 / 7), (1 / 5, 0.143)],
    "weight of all words together": [(1, 5 / 12), (1.0, 0.417)],
    "masked after the softmax": [(0.083, 0), (1 / 12, 0.0)],
    "nothing without a mask": [(0.2, 0), (1 / 5, 0.0)],
    "rounded too far": [(0.2, 0.08), (0.2, 0.1)],
    "percentages": [(20, 8.33), (20, 8.3), (20.0, 8)],
    "numbers of keys, not weights": [(5, 12), (np.int64(5), 12.0)],
}
SHARE_RIGHT = [(0.2, 1 / 12), (1 / 5, 0.083), (np.float64(0.2), np.float32(1 / 12))]
SHARE_NEW = [
    0.2, 1 / 12, (0.2,), (0.2, 1 / 12, 0), [0.2, 1 / 12], "1/5, 1/12", True, (0, 0), (0.2, 1 / 13),
    (1 / 6, 1 / 12), (0.2, 0.02), (0.5, 0.5), (-0.2, 1 / 12), (0.2, math.nan),
]  # fmt: skip

# ---------------------------------------------------------------------------- mean_pooling


def by_loops(count=lambda row, ids: (row != 0).sum(), use=lambda row, k: row[k] != 0):
    """The mean word by word; `use` says which are added, `count` by what is divided."""

    def function(x, ids):
        result = np.zeros((x.shape[0], x.shape[2]), x.dtype)
        for n, row in enumerate(ids):
            for k in range(len(row)):
                if use(row, k):
                    result[n] += x[n, k]
            result[n] /= count(row, ids)
        return result

    return function


right_mean = by_loops()


def everything(row, k):
    return True


def by_slices(x, ids):
    return np.stack([words[: np.count_nonzero(row)].mean(axis=0) for words, row in zip(x, ids)])  # noqa: B905


def by_masked_array(x, ids):
    gone = np.broadcast_to((ids == 0)[..., None], x.shape)
    return np.asarray(np.ma.masked_array(x, gone).mean(axis=1).filled(0), x.dtype)


def places_of(row):
    """The places of each word of a sentence."""
    return [np.flatnonzero(row == word) for word in dict.fromkeys(row.tolist()) if word]


def once(choose):
    """The mean over the different words; `choose` makes one vector of a word's vectors."""

    def function(x, ids):
        result = np.zeros((x.shape[0], x.shape[2]), x.dtype)
        for n, row in enumerate(ids):
            result[n] = sum(choose(x[n, k]) for k in places_of(row)) / len(places_of(row))
        return result

    return function


def column_means(x, ids):
    rows = [x[ids[:, k] != 0, k].mean(axis=0) for k in range(ids.shape[1]) if ids[:, k].any()]
    empty = [np.zeros(x.shape[2], x.dtype)] * (ids.shape[1] - len(rows))
    return np.stack([*rows, *empty])


MEAN_POOLING = {
    "the fault is still there: divided by the longest length": [
        by_loops(count=lambda row, ids: ids.shape[1]),
    ],
    "mean over all positions": [
        by_loops(count=lambda row, ids: len(row), use=everything),
        lambda x, ids: np.einsum("ble->be", x) / x.shape[1],
    ],
    "padding in the sum": [by_loops(use=everything)],
    "sum, not mean": [
        by_loops(count=lambda row, ids: 1),
        lambda x, ids: np.einsum("ble,bl->be", x, ids != 0),
    ],
    "mask upside down": [
        by_loops(count=lambda row, ids: max((row == 0).sum(), 1), use=lambda row, k: row[k] == 0),
        by_loops(count=lambda row, ids: (row == 0).sum(), use=lambda row, k: row[k] == 0),
    ],
    "vectors counted that are not 0": [
        lambda x, ids: x.sum(1) / np.count_nonzero(x.any(2), axis=1)[:, None].astype(x.dtype),
        lambda x, ids: (
            np.einsum("ble,bl->be", x, ids != 0)
            / np.count_nonzero(x.any(2), axis=1)[:, None].astype(x.dtype)
        ),
    ],
    "divided by all words of the batch": [by_loops(count=lambda row, ids: np.count_nonzero(ids))],
    "divided by the first sentence's length": [
        by_loops(count=lambda row, ids: np.count_nonzero(ids[0])),
    ],
    "maximum": [
        lambda x, ids: np.stack([w[r != 0].max(axis=0) for w, r in zip(x, ids, strict=True)]),
    ],
    "first position": [lambda x, ids: np.take(x, 0, axis=1)],
    "mean over the sentences": [column_means],
    "words weighted by their ids": [
        lambda x, ids: np.stack([np.average(w, axis=0, weights=r) for w, r in zip(x, ids)]).astype(  # noqa: B905
            x.dtype
        ),
    ],
    "unknown words or the class token left out": [
        by_loops(count=lambda row, ids: (row > 1).sum(), use=lambda row, k: row[k] > 1),
        by_loops(count=lambda row, ids: (row > 2).sum(), use=lambda row, k: row[k] >= 3),
    ],
    "a word that stands twice counted once": [
        by_loops(count=lambda row, ids: len(set(row.tolist()) - {0})),
        once(lambda vectors: sum(vectors) / len(vectors)),
        once(lambda vectors: vectors[0]),
    ],
}
MEAN_POOLING_RIGHT = [right_mean, by_slices, by_masked_array]


def in_place(x, ids):
    x *= (ids != 0)[..., None]
    return x.sum(axis=1) / (ids != 0).sum(axis=1)[:, None].astype(x.dtype)


MEAN_POOLING_NEW = [
    lambda x, ids: right_mean(x.astype(np.float16), ids).astype(x.dtype),
    lambda x, ids: right_mean(x, ids.astype(np.uint8)),
    lambda x, ids: x,
    lambda x, ids: right_mean(x, ids) + 1e-3,
    lambda x, ids: right_mean(x, ids)[0],
    lambda x, ids: right_mean(x, ids)[None],
    lambda x, ids: right_mean(x, ids)[:, None],
    lambda x, ids: right_mean(x, ids).tolist(),
    lambda x, ids: right_mean(x, ids).round(),
    lambda x, ids: right_mean(x, ids).T,
    lambda x, ids: -right_mean(x, ids),
    lambda x, ids: right_mean(x, ids) * np.nan,
    lambda x, ids: np.median(x, axis=1),
    lambda x, ids: x[:, -1],
    lambda x, ids: x.min(axis=1),
    by_loops(count=lambda row, ids: (row != 0).sum() + 1),
    once(lambda vectors: vectors[-1]),
    by_loops(count=lambda row, ids: (row > 1).sum()),
    by_loops(count=lambda row, ids: (row != 1).sum(), use=lambda row, k: row[k] != 1),
    by_loops(count=lambda row, ids: np.sqrt((row != 0).sum())),
    in_place,
    lambda x: x,
]

# ---------------------------------------------------------------------------- shares


def by_rows(score=lambda word, query, x: word @ query / math.sqrt(len(word)), keep=None):
    """The shares row by row with Python's own exp, less the largest score."""

    def function(x, ids, query):
        result = np.zeros(ids.shape, x.dtype)
        for n, row in enumerate(ids):
            places = [k for k in range(len(row)) if keep is None or keep(row, k)]
            scores = [float(score(x[n, k], query, x)) for k in places]
            exponentials = [math.exp(s - max(scores)) for s in scores]
            for k, e in zip(places, exponentials, strict=True):
                result[n, k] = e / sum(exponentials)
        return result

    return function


def is_word(row, k):
    return row[k] != 0


right_shares = by_rows(keep=is_word)


def by_torch(x, ids, query):
    words, real = torch.tensor(x), torch.tensor(ids != 0)
    scores = words @ torch.tensor(query) / x.shape[-1] ** 0.5
    return scores.masked_fill(~real, -torch.inf).softmax(dim=1).numpy()


def torch_scores(x, query):
    return torch.tensor(x) @ torch.tensor(query) / x.shape[-1] ** 0.5


def hidden_after(x, ids, query):
    return by_rows()(x, ids, query) * (ids != 0)


def zero_filled(x, ids, query):
    scores = torch_scores(x, query) * torch.tensor(ids != 0)
    return scores.softmax(dim=1).numpy()


def padding_only(x, ids, query):
    scores = torch_scores(x, query).masked_fill(torch.tensor(ids != 0), -1e30)
    return scores.softmax(dim=1).numpy()


def along_the_batch(x, ids, query):
    scores = torch_scores(x, query).masked_fill(torch.tensor(ids == 0), -1e30)
    return scores.softmax(dim=0).numpy()


def only_words_of_the_batch(x, ids, query):
    scores = torch_scores(x, query).masked_fill(torch.tensor(ids == 0), -torch.inf)
    return scores.softmax(dim=0).numpy()


def filled(number):
    def function(x, ids, query):
        scores = torch_scores(x, query).masked_fill(torch.tensor(ids == 0), number)
        return scores.softmax(dim=1).numpy()

    return function


def cut_off(limit):
    def score(word, query, x):
        return max(-limit, min(limit, word @ query / math.sqrt(len(word))))

    return by_rows(score, is_word)


def overflowing(x, ids, query):
    e = np.where(ids == 0, 0, np.exp(x @ query / np.sqrt(x.shape[2]).astype(x.dtype)))
    return (e / e.sum(axis=1)[:, None]).astype(x.dtype)


def less_the_largest_of_all(hidden):
    """The largest score is that of all positions; `hidden` is what padding has for it, if any."""

    def function(x, ids, query):
        scores, real = torch_scores(x, query), torch.tensor(ids != 0)
        scores = scores if hidden is None else scores.where(real, hidden)
        e = torch.exp(scores - scores.amax(dim=1, keepdim=True)) * real
        return (e / e.sum(dim=1, keepdim=True)).numpy()

    return function


def less_the_mean(x, ids, query):
    scores = torch_scores(x, query).masked_fill(torch.tensor(ids == 0), torch.nan)
    e = torch.exp(scores - scores.nanmean(dim=1, keepdim=True)).nan_to_num(0, torch.inf, 0)
    return (e / e.sum(dim=1, keepdim=True)).numpy()


def in_single_precision(x, ids, query):
    scores = torch_scores(x, query).float().masked_fill(torch.tensor(ids == 0), -torch.inf)
    return scores.softmax(dim=1).numpy().astype(x.dtype)


def over_everything(x, ids, query):
    scores = torch_scores(x, query).masked_fill(torch.tensor(ids == 0), -torch.inf)
    return scores.flatten().softmax(dim=0).view(ids.shape).numpy()


def divided_by_everything(x, ids, query):
    scores = torch_scores(x, query).masked_fill(torch.tensor(ids == 0), -torch.inf)
    e = (scores - scores.amax(dim=1, keepdim=True)).exp()
    return (e / e.sum()).numpy()


def winner(x, ids, query):
    scores = torch_scores(x, query).masked_fill(torch.tensor(ids == 0), -torch.inf)
    return np.where(scores == scores.amax(dim=1, keepdim=True), 1, 0).astype(x.dtype)


def first_winner(x, ids, query):
    scores = torch_scores(x, query).masked_fill(torch.tensor(ids == 0), -torch.inf).numpy()
    return np.eye(ids.shape[1], dtype=x.dtype)[scores.argmax(axis=1)]


SHARES = {
    "no mask": [by_rows()],
    "mask after the softmax": [hidden_after],
    "scores of padding set to 0": [
        zero_filled,
        lambda x, ids, query: np.where(ids, zero_filled(x, ids, query), 0),
    ],
    "a number in place of -inf": [filled(-20), filled(-50), filled(-100), filled(-1e4)],
    "scores cut off": [cut_off(500.0), cut_off(100.0), cut_off(50.0)],
    "mask upside down": [padding_only],
    "softmax over the sentences": [along_the_batch, only_words_of_the_batch],
    "not divided": [by_rows(lambda word, query, x: word @ query, is_word)],
    "divided by the width, not its root": [
        by_rows(lambda word, query, x: word @ query / len(word), is_word),
    ],
    "divided by the root of the length": [
        by_rows(lambda word, query, x: word @ query / math.sqrt(x.shape[1]), is_word),
    ],
    "no softmax": [
        lambda x, ids, query: np.where(ids, torch_scores(x, query).numpy(), 0),
    ],
    "uniform": [by_rows(lambda word, query, x: 0.0, is_word)],
    "no maximum subtracted": [overflowing],
    "the mean subtracted": [less_the_mean],
    "the largest score of all positions subtracted": [
        less_the_largest_of_all(None),
        less_the_largest_of_all(0.0),
    ],
    "softmax over the whole batch": [over_everything, divided_by_everything],
    "all for the word with the largest score": [winner, first_winner],
    "unknown words or the class token left out": [
        by_rows(keep=lambda row, k: row[k] > 1),
        by_rows(keep=lambda row, k: row[k] not in (0, 1, 2)),
    ],
}
SHARES_RIGHT = [right_shares, by_torch]
SHARES_NEW = [
    in_single_precision,
    lambda x, ids, query: x,
    lambda x, ids, query: np.zeros(ids.shape),
    lambda x, ids, query: right_shares(x, ids, query) + 1e-3,
    lambda x, ids, query: right_shares(x, ids, query)[0],
    lambda x, ids, query: right_shares(x, ids, query)[..., None],
    lambda x, ids, query: right_shares(x, ids, query).tolist(),
    lambda x, ids, query: right_shares(x, ids, query).round(1),
    lambda x, ids, query: right_shares(x, ids, query).T,
    lambda x, ids, query: right_shares(x, ids, -query),
    lambda x, ids, query: right_shares(x, ids, query) ** 2,
    lambda x, ids, query: right_shares(x, ids, query) * np.nan,
    by_rows(lambda word, query, x: 2 * word @ query, is_word),
    by_rows(keep=lambda row, k: row[k] not in (0, 2)),
    by_rows(lambda word, query, x: -np.square(word - query).sum(), is_word),
    lambda x, ids, query: right_shares(x, ids, query)[:, ::-1],
    lambda x, ids: x,
]

# ---------------------------------------------------------------------------- remove_word


def by_words(choose, by=None, features=slice(None)):
    """Replaces word by word; `choose(ids, weights)` lists (sentence, place)."""

    def function(x, ids, weights, unknown):
        result = x.copy()
        for n, k in choose(ids, weights):
            result[n, k, features] = (unknown if by is None else by * unknown)[features]
        return result

    return function


def words_of(row):
    return [k for k in range(len(row)) if row[k]]


def loudest(ids, weights):
    return [(n, max(words_of(row), key=lambda k: weights[n, k])) for n, row in enumerate(ids)]


def quietest(ids, weights):
    return [(n, min(words_of(row), key=lambda k: weights[n, k])) for n, row in enumerate(ids)]


def wherever(ids, weights):
    return list(enumerate(np.argmax(weights, axis=1)))


def if_a_word(ids, weights):
    return [(n, k) for n, k in wherever(ids, weights) if ids[n, k]]


def one_of_all(ids, weights):
    return [max(zip(*np.nonzero(ids), strict=True), key=lambda place: weights[place])]


def of_columns(ids, weights):
    columns = [np.nonzero(ids[:, k])[0] for k in range(ids.shape[1])]
    return [(max(c, key=lambda n: weights[n, k]), k) for k, c in enumerate(columns) if len(c)]


def the_others(ids, weights):
    kept = loudest(ids, weights)
    return [place for place in zip(*np.nonzero(ids), strict=True) if place not in kept]


def of_the_first(ids, weights):
    return [(n, loudest(ids, weights)[0][1]) for n in range(len(ids))]


def of_ids(ids, weights):
    return loudest(ids, ids)


def equally_loud(ids, weights):
    largest = [weights[place] for place in loudest(ids, weights)]
    return [(n, k) for n, k in np.ndindex(ids.shape) if weights[n, k] == largest[n]]


def with_padding(ids, weights):
    return [*loudest(ids, weights), *zip(*np.nonzero(ids == 0), strict=True)]


def everywhere(ids, weights):
    names = [ids[place] for place in loudest(ids, weights)]
    return [(n, k) for n, k in np.ndindex(ids.shape) if ids[n, k] == names[n]]


def in_each(x, ids, weights, unknown):
    result = x.copy()
    result[:, np.where(ids != 0, weights, -np.inf).argmax(axis=1)] = unknown
    return result


def with_padding_as(number):
    """The word of the largest weight, where padding has this weight."""
    return lambda ids, weights: wherever(ids, np.where(ids == 0, number, weights))


def farthest_from_zero(ids, weights):
    return loudest(ids, weights**2)


def last_of_equal(ids, weights):
    backwards = loudest(ids[:, ::-1], weights[:, ::-1])
    return [(n, ids.shape[1] - 1 - k) for n, k in backwards]


def equally_loud_words(ids, weights):
    return [(n, k) for n, k in equally_loud(ids, weights) if ids[n, k]]


def moved_up(x, ids, weights, unknown):
    rows = [np.delete(x[n], k, axis=0) for n, k in loudest(ids, weights)]
    return np.pad(np.stack(rows), ((0, 0), (0, 1), (0, 0)))


right_removal = by_words(loudest)


def by_torch_scatter(x, ids, weights, unknown):
    real = torch.tensor(ids) != 0
    place = torch.tensor(weights).masked_fill(~real, -torch.inf).argmax(dim=1)
    gone = torch.nn.functional.one_hot(place, ids.shape[1]).bool()[..., None]
    return torch.where(gone, torch.tensor(unknown), torch.tensor(x)).numpy()


def over(limit):
    def choose(ids, weights):
        places = [[k for k in range(len(row)) if row[k] > limit] for row in ids]
        return [(n, max(own, key=lambda k: weights[n, k])) for n, own in enumerate(places) if own]

    return choose


REMOVE_WORD = {
    "padding may be chosen": [by_words(wherever)],
    "an unknown word or the class token spared": [by_words(over(1)), by_words(over(2))],
    "padding of the same weight": [by_words(equally_loud)],
    "padding replaced as well": [by_words(with_padding)],
    "a number in place of -inf": [
        *(by_words(with_padding_as(-number)) for number in (0, 1, 10, 1e4, 1e9)),
        by_words(lambda ids, weights: wherever(ids, weights - 100.0 * (ids == 0))),
    ],
    "the largest without its sign": [
        by_words(farthest_from_zero),
        by_words(lambda ids, weights: wherever(ids, abs(np.where(ids, weights, 0)))),
    ],
    "all words of the largest weight": [by_words(equally_loud_words)],
    "the last of equal weights": [by_words(last_of_equal)],
    "the word wherever it stands": [by_words(everywhere)],
    "the places of all sentences, in each": [in_each],
    "padding with a large weight hides the word": [by_words(if_a_word)],
    "the smallest weight": [by_words(quietest)],
    "one word of the whole batch": [by_words(one_of_all)],
    "the largest of each column": [by_words(of_columns)],
    "set to 0": [by_words(loudest, 0)],
    "all words but the largest replaced": [by_words(the_others)],
    "taken out, the rest moved up": [moved_up],
    "the first sentence decides for all": [by_words(of_the_first)],
    "the largest id": [by_words(of_ids)],
    "only the first feature replaced": [by_words(loudest, features=slice(1))],
}
REMOVE_WORD_RIGHT = [right_removal, by_torch_scatter]


def removed_in_place(x, ids, weights, unknown):
    x[:] = right_removal(x, ids, weights, unknown)
    return x


def then(change):
    return lambda *arguments: change(right_removal(*arguments))


REMOVE_WORD_NEW = [
    by_words(lambda ids, weights: loudest(ids, (weights * 100).astype(int))),
    by_words(lambda ids, weights: loudest(ids, weights.astype(np.float16))),
    by_words(lambda ids, weights: loudest(ids, weights.astype(np.float32))),
    by_words(lambda ids, weights: loudest(ids, np.round(weights, 6))),
    lambda x, ids, weights, unknown: x,
    lambda x, ids, weights, unknown: np.zeros_like(x),
    lambda x, ids, weights, unknown: ids,
    then(lambda result: result + 1e-3),
    then(lambda result: result[0]),
    then(lambda result: result[None]),
    then(lambda result: result.tolist()),
    then(lambda result: result.T),
    then(lambda result: result[:, ::-1]),
    then(lambda result: result[:, :-1]),
    then(lambda result: result * np.nan),
    by_words(loudest, 2),
    by_words(lambda ids, weights: [(n, 0) for n in range(len(ids))]),
    by_words(lambda ids, weights: loudest(ids, weights)[:1]),
    removed_in_place,
    lambda ids: ids,
]

# ---------------------------------------------------------------------------- pooling_test

IDS = np.array([[4, 0, 0, 0, 0], [3, 3, 5, 6, 1], [8, 2, 2, 0, 0]])
X = np.random.default_rng(5).normal(size=(3, 5, 4))


def good_pooling_test(pool):
    pooled = pool(X, IDS)
    assert np.shape(pooled) == (3, 4)
    for n, e in np.ndindex(3, 4):
        words = [X[n, k, e] for k in range(5) if IDS[n, k]]
        assert math.isclose(pooled[n][e], sum(words) / len(words), abs_tol=1e-9)


def good_pooling_test_by_torch(pool):
    words = torch.tensor(X).masked_fill(torch.tensor(IDS == 0)[..., None], torch.nan)
    np.testing.assert_allclose(pool(X, IDS), words.nanmean(dim=1).numpy())


def compare(lengths, longest, look=np.asarray, behind=1.0):
    def test(pool):
        words = np.array([1, 6, 6, 2, 5, 4])[:longest]
        ids = np.where(np.arange(longest) < np.array(lengths)[:, None], words, 0)
        x = np.random.default_rng(3).normal(size=(*ids.shape, 2))
        x[ids == 0] *= behind
        np.testing.assert_allclose(look(pool(x, ids)), look(right_mean(x, ids)))

    return test


def only_axes(pool):
    assert pool(X, IDS).ndim == 2
    assert list(pool(X, IDS).shape) == [3, 4]


def only_repeats(pool):
    assert (pool(X, IDS) == pool(X.copy(), IDS.copy())).all()


def sevens(pool):
    x = np.full(X.shape, 7.0)
    x[IDS == 0] = -3
    result = pool(x, IDS)
    assert np.abs(result - 7).max() < 1e-9


def one_of_many(pool):
    assert np.isclose(pool(X, IDS), right_mean(X, IDS)).any()


def one_of_loops(pool):
    ids = np.array([[1, 2, 3, 4, 5], [1, 2, 0, 0, 0], [1, 2, 3, 0, 0]])
    pooled = pool(X, ids)
    right = [abs(pooled[n, e] - right_mean(X, ids)[n, e]) < 1e-9 for n, e in np.ndindex(3, 4)]
    assert any(right)


def only_last_sentence(pool):
    for pooled, expected in zip(pool(X, IDS), right_mean(X, IDS), strict=True):
        close = np.allclose(pooled, expected)
    assert close


def all_but_the_first(pool):
    assert np.allclose(pool(X, IDS)[1:], right_mean(X, IDS)[1:])


def close_to(**tolerance):
    def test(pool):
        assert np.allclose(pool(X, IDS), right_mean(X, IDS), **tolerance)

    return test


def compare_sums(axis):
    def test(pool):
        assert np.allclose(np.sum(pool(X, IDS), axis), right_mean(X, IDS).sum(axis))

    return test


POOLING_TEST = {
    "places not compared": [compare_sums(None), compare_sums(0), compare_sums(1)],
    "one right number is enough": [one_of_many, one_of_loops],
    "an assertion that no fault breaks": [only_axes, only_repeats, compare((2, 3), 3, np.shape)],
    "no padding at all": [compare((3, 3), 3)],
    "one sentence without padding": [compare((3,), 3)],
    "zeros behind the words": [compare((2, 3, 1), 3, behind=0)],
    "all words equal": [sevens],
    "one word in each sentence": [compare((1, 1, 1), 3)],
    "only the first sentence": [compare((2, 3, 1), 3, lambda pooled: np.asarray(pooled)[0])],
    "the first sentence not looked at": [
        only_last_sentence,
        all_but_the_first,
        compare((2, 1, 3), 3, lambda p: p[2]),
    ],
    "only the first feature": [compare((2, 3, 1), 3, lambda pooled: np.asarray(pooled)[..., 0])],
    "all lengths equal": [compare((3, 3), 5)],
    "padding in the last sentence only": [compare((3, 3, 2), 3), compare((4, 1), 4)],
    "padding in the first sentence only": [compare((1, 3, 3), 3), compare((2, 4), 4)],
}
POOLING_TEST_RIGHT = [good_pooling_test, good_pooling_test_by_torch, compare((3, 1, 4), 6)]


def wants_the_fault(pool):
    assert np.allclose(pool(X, IDS), (X * (IDS != 0)[..., None]).mean(axis=1))


def wants_all_positions(pool):
    assert np.allclose(pool(X, IDS), X.mean(axis=1))


def wants_list(pool):
    assert pool(X, IDS) == right_mean(X, IDS).tolist()


def never_calls(pool):
    assert right_mean(X, IDS).shape == (3, 4)


def no_assert(pool):
    np.allclose(pool(X, IDS), right_mean(X, IDS))


def swallows(pool):
    try:
        assert np.allclose(pool(X, IDS), right_mean(X, IDS))
    except AssertionError:
        print("wrong")


def stops(pool):
    assert pool(X, IDS).shape == undefined_name


def three_arguments(pool):
    assert pool(X, IDS, 0).shape == (3, 4)


def raises_another(pool):
    if not np.allclose(pool(X, IDS), right_mean(X, IDS)):
        raise ValueError("wrong")


def not_far(pool):
    assert not (abs(pool(X, IDS) - right_mean(X, IDS)) > 1e-6).any()


def not_above(pool):
    assert (pool(X, IDS) - right_mean(X, IDS)).max() < 1e-6


def one_id(pool):
    ids = np.where(IDS == 2, 1, IDS)
    assert np.allclose(pool(X, ids), right_mean(X, ids))


def corners(pool):
    pooled, expected = pool(X, IDS), right_mean(X, IDS)
    assert pooled.shape == expected.shape
    assert np.allclose(pooled[:, [0, -1]], expected[:, [0, -1]])


def diagonal(pool):
    assert np.allclose(np.diag(pool(X, IDS)), np.diag(right_mean(X, IDS)))


def unequal_to_zero(pool):
    ids = np.where(IDS > 5, -IDS, IDS)
    assert np.allclose(pool(X, ids), right_mean(X, ids))


def plain_ids(pool):
    ids = np.where(IDS == 0, 0, np.arange(3, 8))
    assert np.allclose(pool(X, ids), right_mean(X, ids))


def scattered(pool):
    ids = np.array([[3, 0, 5, 0, 7], [0, 0, 1, 2, 4], [1, 2, 3, 4, 5]])
    assert np.allclose(pool(X, ids), right_mean(X, ids))


def nan_behind(pool):
    x = np.where((IDS != 0)[..., None], X, np.nan)
    assert np.allclose(pool(x, IDS), right_mean(x, IDS))


def empty_sentence(pool):
    good_pooling_test(pool)
    assert np.isfinite(pool(X[:1], np.zeros((1, 5), int))).all()


def zeros_for_no_word(pool):
    ids = np.where(np.arange(3)[:, None] == 1, 0, IDS)
    pooled = pool(X, ids)
    assert np.allclose(pooled[[0, 2]], right_mean(X[[0, 2]], IDS[[0, 2]]))
    assert not pooled[1].any()


POOLING_TEST_NEW = [
    wants_the_fault, wants_all_positions, wants_list, never_calls, no_assert, swallows, stops,
    three_arguments, raises_another, nan_behind,
    empty_sentence, zeros_for_no_word,
    close_to(atol=0.05), close_to(atol=0.5), close_to(rtol=5e-3), lambda pool: pool(X, IDS),
    compare((3, 1, 4), 6, lambda pooled: pooled[:, 1:]), not_far, not_above, one_id, corners,
    diagonal, unequal_to_zero, plain_ids, scattered,
]  # fmt: skip

ANSWERS = {
    "share": (SHARE_RIGHT, SHARE, SHARE_NEW),
    "mean_pooling": (MEAN_POOLING_RIGHT, MEAN_POOLING, MEAN_POOLING_NEW),
    "shares": (SHARES_RIGHT, SHARES, SHARES_NEW),
    "remove_word": (REMOVE_WORD_RIGHT, REMOVE_WORD, REMOVE_WORD_NEW),
    "pooling_test": (POOLING_TEST_RIGHT, POOLING_TEST, POOLING_TEST_NEW),
}
