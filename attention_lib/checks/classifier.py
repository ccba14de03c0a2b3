"""The exercises of chapter 9, classifier: references, cases, known mistakes, hints."""

import numpy as np

from attention_lib.checks.engine import Case, CatchFaults, Mistake, PredictValue, WriteFunction

# ---------------------------------------------------------------------------- share

WORDS, LONGEST = 5, 12

share = PredictValue(
    level=1,
    trains="what padding takes from the words",
    answer=lambda: (1 / WORDS, 1 / LONGEST),
    mistakes=(
        Mistake(
            "the two numbers swapped",
            "First with the mask, then without.",
            (1 / LONGEST, 1 / WORDS),
        ),
        Mistake(
            "no difference: the mask hides nothing",
            "A masked key gets weight 0, and the others share what it had.",
            (1 / LONGEST, 1 / LONGEST),
        ),
        Mistake(
            "no difference: padding gets nothing anyway",
            "The softmax gives every key a weight. Without a mask padding is a key like others.",
            (1 / WORDS, 1 / WORDS),
        ),
        Mistake(
            "all the weight for one word",
            "The scores are equal, so no word gets more than another.",
            (1, 1 / LONGEST),
            (1, 1 / WORDS),
            (1, 1),
        ),
        Mistake(
            "only the padding counted",
            "A key for each of the 12 positions is there without a mask, words and padding.",
            (1 / WORDS, 1 / (LONGEST - WORDS)),
        ),
        Mistake(
            "weight of all words together",
            "That is what all five words get together. The question is about one.",
            (1, WORDS / LONGEST),
        ),
        Mistake(
            "masked after the softmax",
            "A mask that comes after the softmax leaves 1/12 for each word, and rows that do not "
            "sum to 1. The mask comes before it.",
            (1 / LONGEST, 0),
        ),
        Mistake(
            "nothing without a mask",
            "A softmax gives no key exactly 0. Without a mask a word has a weight as well.",
            (1 / WORDS, 0),
        ),
        Mistake(
            "rounded too far",
            "The idea is right, the rounding too coarse. Write quotients, such as 1 / 3.",
            (round(1 / WORDS, 2), round(1 / LONGEST, 2)),
            (round(1 / WORDS, 1), round(1 / LONGEST, 1)),
        ),
        Mistake(
            "percentages",
            "The weights of a query sum to 1, not to 100.",
            *((100 / WORDS, round(100 / LONGEST, digits)) for digits in range(3)),
        ),
        Mistake(
            "numbers of keys, not weights",
            "The keys are counted right. The weights of a query sum to 1.",
            (WORDS, LONGEST),
        ),
    ),
    hints=(
        "The weights of a query sum to 1, and equal scores give equal weights.",
        "With the mask only the words of the sentence are keys, without it all positions.",
        "Each of n equal weights is 1 / n: once n is 5, once it is 12.",
    ),
    tolerance=2e-3,
)

# ---------------------------------------------------------------------------- mean_pooling

# lengths of the sentences, width of a word
BATCHES = {
    ((1,), 1): "one word",
    ((3,), 2): "no padding",
    ((2, 1), 1): "two sentences",
    ((1, 2), 2): "the first one shorter",
    ((3, 1, 2), 2): "three sentences",
    ((2, 4, 1), 3): "all sizes different",
    ((4, 4), 3): "two long sentences",
    ((1, 5), 2): "much padding",
    ((2, 3, 3, 1), 3): "four sentences",
}


# only id 0 is padding: 1 is an unknown word and 2 the class token
LOW_IDS = np.array([[2, 5, 1, 4], [1, 6, 0, 0]])
TWICE = np.array([[5, 4, 5, 6], [7, 8, 0, 0]])


def _ids(lengths, longest=None):
    """Ids from 3 on, padded behind by 0."""
    longest = longest or max(lengths)
    ids = 3 + (np.arange(len(lengths) * longest) * 5 % 17).reshape(len(lengths), longest)
    return np.where(np.arange(longest) < np.array(lengths)[:, None], ids, 0)


def _vectors(rng, ids, width):
    """Different multiples of a quarter, none 0, at padding, too."""
    numbers = rng.permutation(np.arange(ids.size * width) + 1.0) / 4
    signs = rng.choice([-1, 1], ids.size * width)
    return (numbers * signs).reshape(*ids.shape, width)


def _pooling_cases():
    rng = np.random.default_rng(21)
    for (lengths, width), label in BATCHES.items():
        ids = _ids(lengths)
        yield Case(label, _vectors(rng, ids, width), ids)
    ids = _ids((2, 1), longest=4)
    yield Case("padding in every row", _vectors(rng, ids, 2), ids)
    yield Case("float32", _vectors(rng, ids, 2).astype(np.float32), ids)
    x = _vectors(rng, ids, 2)
    x[0, 1:3], x[1, 2:] = 0, 0  # a word and padding
    yield Case("vectors of zeros", x, ids)
    yield Case("unknown words and a class token", _vectors(rng, LOW_IDS, 2), LOW_IDS)
    yield Case("a word twice", _vectors(rng, TWICE, 3), TWICE)
    ids = np.array([[256, 3999, 512], [1024, 0, 0]])
    yield Case("large ids and uneven numbers", rng.normal(size=(2, 3, 2)), ids)


def _real(ids):
    return (ids != 0)[..., None]


def _mean(x, ids):
    return (x * _real(ids)).sum(axis=1) / _real(ids).sum(axis=1).astype(x.dtype)


def _sum(x, ids):
    return (x * _real(ids)).sum(axis=1)


def _all_positions(x, ids):
    return x.mean(axis=1)


def _by_longest(x, ids):
    return (x * _real(ids)).mean(axis=1)


def _padding_summed(x, ids):
    return x.sum(axis=1) / _real(ids).sum(axis=1).astype(x.dtype)


def _upside_down(x, ids):
    padding = ~_real(ids)
    return (x * padding).sum(axis=1) / np.maximum(padding.sum(axis=1), 1).astype(x.dtype)


def _upside_down_unguarded(x, ids):
    padding = ~_real(ids)
    return (x * padding).sum(axis=1) / padding.sum(axis=1).astype(x.dtype)


def _not_zero(x, ids):
    return _sum(x, ids) / (x != 0).any(axis=-1).sum(axis=1, keepdims=True).astype(x.dtype)


def _not_zero_at_all(x, ids):
    return x.sum(axis=1) / (x != 0).any(axis=-1).sum(axis=1, keepdims=True).astype(x.dtype)


def _whole_batch(x, ids):
    return _sum(x, ids) / _real(ids).sum().astype(x.dtype)


def _first_length(x, ids):
    return _sum(x, ids) / (ids[0] != 0).sum().astype(x.dtype)


def _maximum(x, ids):
    return np.where(_real(ids), x, -np.inf).max(axis=1).astype(x.dtype)


def _first(x, ids):
    return x[:, 0]


def _over_sentences(x, ids):
    count = np.maximum(_real(ids).sum(axis=0), 1).astype(x.dtype)
    return (x * _real(ids)).sum(axis=0) / count


def _mean_over(choose):
    """The mean over the words that `choose(ids)` is True for."""

    def function(x, ids):
        keep = choose(ids)[..., None]
        return (x * keep).sum(axis=1) / keep.sum(axis=1).astype(x.dtype)

    return function


def _different_words(ids):
    return np.array([len(set(row[row != 0].tolist())) for row in ids])[:, None]


def _by_different_words(x, ids):
    return _sum(x, ids) / _different_words(ids).astype(x.dtype)


def _each_word_once(one):
    """The mean over the different words of a sentence; `one` makes a vector of all its places."""

    def function(x, ids):
        rows = zip(x, ids, strict=True)
        means = [
            np.mean([one(w[r == i]) for i in set(r[r != 0].tolist())], axis=0) for w, r in rows
        ]
        return np.stack(means).astype(x.dtype)

    return function


def _weighted_by_id(x, ids):
    return (x * ids[..., None]).sum(axis=1) / ids.sum(axis=1)[:, None].astype(x.dtype)


mean_pooling = WriteFunction(
    level=2,
    trains="a mean that leaves padding out",
    reference=lambda x, ids: _mean(x, ids),
    cases=tuple(_pooling_cases()),
    mistakes=(
        Mistake(
            "the fault is still there: divided by the longest length",
            "The sum leaves padding out, the division does not. Divide by the number of words of "
            "each sentence.",
            _by_longest,
        ),
        Mistake(
            "mean over all positions",
            "Padding is averaged like a word. Leave it out of the sum and of the count.",
            _all_positions,
        ),
        Mistake(
            "padding in the sum",
            "The count is right. The sum holds the vectors of padding as well.",
            _padding_summed,
        ),
        Mistake(
            "sum, not mean",
            "Padding is out. Divide by the number of words.",
            _sum,
        ),
        Mistake(
            "mask upside down",
            "This is the mean of the padding. A word has an id other than 0.",
            _upside_down,
            _upside_down_unguarded,
        ),
        Mistake(
            "vectors counted that are not 0",
            "The vector of a word may be 0, and that of padding need not be. The ids tell which "
            "positions are words.",
            _not_zero_at_all,
            _not_zero,
        ),
        Mistake(
            "divided by all words of the batch",
            "Each sentence has its own number of words: count along axis 1 only.",
            _whole_batch,
        ),
        Mistake(
            "divided by the first sentence's length",
            "Each sentence has its own number of words.",
            _first_length,
        ),
        Mistake("maximum", "This is max pooling. The mean is asked for.", _maximum),
        Mistake("first position", "Only the first word was read. All of them count.", _first),
        Mistake(
            "mean over the sentences",
            "Axis 0 is the batch. The words of a sentence are along axis 1.",
            _over_sentences,
        ),
        Mistake(
            "words weighted by their ids",
            "An id is a name, not a weight. Multiply by ids != 0.",
            _weighted_by_id,
        ),
        Mistake(
            "unknown words or the class token left out",
            "Only id 0 is padding. Ids 1 and 2 count like any word: use ids != 0.",
            _mean_over(lambda ids: ids > 1),
            _mean_over(lambda ids: ids > 2),
        ),
        Mistake(
            "a word that stands twice counted once",
            "Each place counts, also where a word stands again: its vectors there may differ.",
            _by_different_words,
            _each_word_once(lambda vectors: vectors.mean(axis=0)),
            _each_word_once(lambda vectors: vectors[0]),
        ),
    ),
    hints=(
        "Two words of ones became 0.5: the sum, 2, was divided by 4, the length of the batch.",
        "(ids != 0).sum(axis=1) counts the words of each sentence.",
        "Give the count a second axis, so that it divides (b, embed_dim): keepdims, or [:, None].",
    ),
)

# ---------------------------------------------------------------------------- shares


def _softmax(scores, axis=1):
    e = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def _scores(x, query, power=0.5):
    return (x @ query / x.shape[-1] ** power).astype(x.dtype)


def _only_words(scores, ids, filled=-np.inf):
    return np.where(ids != 0, scores, filled).astype(scores.dtype)


def _shares(x, ids, query):
    return _softmax(_only_words(_scores(x, query), ids))


def _share_cases():
    rng = np.random.default_rng(22)
    for (lengths, width), label in BATCHES.items():
        ids = _ids(lengths)
        x = rng.integers(-8, 9, size=(*ids.shape, width + 1)) / 4
        yield Case(label, x, ids, rng.integers(-6, 7, size=width + 1) / 4 + 0.125)
    x = rng.integers(-8, 9, size=(2, 4, 3)) / 4
    yield Case("unknown words and a class token", x, LOW_IDS, np.array([0.5, -1.25, 1.0]))
    ids = _ids((2, 1), longest=4)
    x, query = rng.integers(-8, 9, size=(2, 4, 3)) / 4, np.array([1.5, -0.5, 0.75])
    yield Case("float32", x.astype(np.float32), ids, query.astype(np.float32))
    yield Case("large scores (overflow)", 4000 * x + 40, ids, query, extreme=True)
    far = np.array([[[2000.0], [2001.5]], [[-2000.0], [2000.0]], [[3.0], [-1.0]]])
    three, one_number = _ids((2, 2, 1)), np.array([1.25])
    yield Case("scores in the thousands (overflow)", far, three, one_number, extreme=True)
    x, query = rng.integers(-8, 9, size=(2, 4, 4)) / 4 - 1e8, np.array([0.5, 1.0, 0.25, 0.25])
    x[1, 1:], x[0, 1, 0] = 0.25, x[0, 0, 0] + 1  # padding scores far more than words
    yield Case("very negative scores", x, ids, query, extreme=True)


def _no_maximum(x, ids, query):
    e = np.exp(_scores(x, query)) * (ids != 0)
    return e / e.sum(axis=1, keepdims=True)


def _no_maximum_of_words(x, ids, query):
    e = np.exp(_only_words(_scores(x, query), ids))
    return e / e.sum(axis=1, keepdims=True)


def _mean_subtracted(x, ids, query):
    scores, real = _scores(x, query), ids != 0
    mean = (scores * real).sum(axis=1, keepdims=True) / real.sum(axis=1, keepdims=True)
    e = np.exp(_only_words(scores - mean.astype(x.dtype), ids))
    return e / e.sum(axis=1, keepdims=True)


def _zero_before(x, ids, query):
    return _softmax(_only_words(_scores(x, query), ids, 0.0))


def _zero_before_and_after(x, ids, query):
    return _zero_before(x, ids, query) * (ids != 0)


def _filled(number):
    """Shares with a finite score in place of -inf."""
    return lambda x, ids, query: _softmax(_only_words(_scores(x, query), ids, number))


def _clipped(limit):
    """Shares of scores that were cut off at both ends."""
    return lambda x, ids, query: _softmax(
        _only_words(np.clip(_scores(x, query), -limit, limit), ids)
    )


def _over_the_batch(x, ids, query):
    return _softmax(_only_words(_scores(x, query), ids), axis=None)


def _over_the_batch_by_rows(x, ids, query):
    scores = _only_words(_scores(x, query), ids)
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    return e / e.sum()


def _hard(x, ids, query):
    scores = _only_words(_scores(x, query), ids)
    return (scores == scores.max(axis=1, keepdims=True)).astype(x.dtype)


def _hard_first(x, ids, query):
    place = _only_words(_scores(x, query), ids).argmax(axis=1)
    return (np.arange(ids.shape[1]) == place[:, None]).astype(x.dtype)


def _shares_of_ids_over(limit):
    return lambda x, ids, query: _softmax(
        np.where(ids > limit, _scores(x, query), -np.inf).astype(x.dtype)
    )


def _masked_after(x, ids, query):
    return _softmax(_scores(x, query)) * (ids != 0)


def _renormalised(shares_of):
    """Shares that sum to 1 again: the largest score was that of all positions."""

    def function(x, ids, query):
        shares = shares_of(x, ids, query)
        return shares / shares.sum(axis=1, keepdims=True)

    return function


shares = WriteFunction(
    level=2,
    trains="pooling by attention with a mask",
    reference=lambda x, ids, query: _shares(x, ids, query),
    cases=tuple(_share_cases()),
    mistakes=(
        Mistake(
            "no mask",
            "Padding gets a share like a word.",
            lambda x, ids, query: _softmax(_scores(x, query)),
        ),
        Mistake(
            "mask after the softmax",
            "Padding has no share, but the shares of the words do not sum to 1 any more. Set the "
            "scores of padding to -inf before the softmax.",
            _masked_after,
        ),
        Mistake(
            "scores of padding set to 0",
            "A score of 0 is not a share of 0: e to the 0 is 1. Use -inf.",
            _zero_before,
            _zero_before_and_after,
        ),
        Mistake(
            "a number in place of -inf",
            "The score of a word can be lower still, and then padding gets the larger share. "
            "Only -inf is below all scores.",
            *(_filled(-number) for number in (20.0, 50.0, 100.0, 1e3, 1e4, 1e6)),
        ),
        Mistake(
            "scores cut off",
            "Beyond the limit all scores become equal, and so do the shares. Subtract the largest "
            "score of each row instead.",
            *(_clipped(limit) for limit in (30.0, 50.0, 100.0, 500.0, 700.0)),
        ),
        Mistake(
            "mask upside down",
            "The words were hidden. A word has an id other than 0.",
            lambda x, ids, query: _softmax(_only_words(_scores(x, query), ids == 0, -1e30)),
        ),
        Mistake(
            "softmax over the sentences",
            "Axis 0 is the batch. The shares of one sentence sum to 1, along axis 1.",
            lambda x, ids, query: _softmax(_only_words(_scores(x, query), ids, -1e30), axis=0),
            lambda x, ids, query: _softmax(_only_words(_scores(x, query), ids), axis=0),
        ),
        Mistake(
            "not divided",
            "Divide the scores by the root of embed_dim.",
            lambda x, ids, query: _softmax(_only_words(_scores(x, query, 0), ids)),
        ),
        Mistake(
            "divided by the width, not its root",
            "Divide the scores by the root of embed_dim.",
            lambda x, ids, query: _softmax(_only_words(_scores(x, query, 1), ids)),
        ),
        Mistake(
            "divided by the root of the length",
            "The root is that of embed_dim, the last axis of x, not of L.",
            lambda x, ids, query: _softmax(
                _only_words((x @ query / x.shape[1] ** 0.5).astype(x.dtype), ids)
            ),
        ),
        Mistake(
            "no softmax",
            "These are scores. The softmax of each row makes shares of them.",
            lambda x, ids, query: _scores(x, query) * (ids != 0),
        ),
        Mistake(
            "uniform",
            "This is the mean over the words; the query has no say.",
            lambda x, ids, query: (ids != 0) / (ids != 0).sum(1, keepdims=True).astype(x.dtype),
        ),
        Mistake(
            "no maximum subtracted",
            "Large scores overflow in exp. Subtract the largest score of each row first.",
            _no_maximum,
            _no_maximum_of_words,
        ),
        Mistake(
            "the largest score of all positions subtracted",
            "The largest score was taken over padding as well. Where that one is far larger, e to "
            "the score of each word is 0. Subtract the largest score of the words.",
            _renormalised(_masked_after),
            _renormalised(_zero_before_and_after),
        ),
        Mistake(
            "the mean subtracted",
            "Less the mean a score can still be too large for exp. Subtract the largest.",
            _mean_subtracted,
        ),
        Mistake(
            "softmax over the whole batch",
            "The shares of all sentences together sum to 1. Those of each sentence must: axis 1.",
            _over_the_batch,
            _over_the_batch_by_rows,
        ),
        Mistake(
            "all for the word with the largest score",
            "This is argmax. The softmax gives the other words a share as well.",
            _hard,
            _hard_first,
        ),
        Mistake(
            "unknown words or the class token left out",
            "Only id 0 is padding. Ids 1 and 2 get a share like any word: use ids != 0.",
            _shares_of_ids_over(1),
            _shares_of_ids_over(2),
        ),
    ),
    hints=(
        "Which score has a share of exactly 0, because e to that score is 0?",
        "np.where(ids != 0, scores, -np.inf): e to the -inf is 0.",
        "Subtract the row's maximum, take np.exp, divide by the row's sum, all along axis 1.",
    ),
)

# ---------------------------------------------------------------------------- remove_word


def _weights(rng, ids, loud):
    """Different multiples of 1/64; with `loud` the largest ones stand at padding."""
    order = rng.permutation(ids.size).reshape(ids.shape) + 1.0
    return (order + loud * ids.size * (ids == 0)) / 64


def _word_cases():
    rng = np.random.default_rng(23)
    for (lengths, width), label in BATCHES.items():
        ids, unknown = _ids(lengths), np.arange(width) + 0.125
        yield Case(label, _vectors(rng, ids, width), ids, _weights(rng, ids, False), unknown)
        if (ids == 0).any():
            label = f"{label} (large at padding)"
            yield Case(label, _vectors(rng, ids, width), ids, _weights(rng, ids, True), unknown)
    ids, unknown = _ids((2, 3)), np.array([0.5, 0.125], np.float32)
    x, weights = _vectors(rng, ids, 2).astype(np.float32), _weights(rng, ids, True)
    yield Case("float32", x, ids, weights.astype(np.float32), unknown)
    weights = np.array([[0.5, 0.125, 0.25, 0.0625], [0.375, 0.25, 0.125, 0.0625]])
    label = "unknown words and a class token"
    yield Case(label, _vectors(rng, LOW_IDS, 3), LOW_IDS, weights, np.arange(3) + 0.125)
    weights = np.array([[0.25, 0.125, 0.5, 0.0625], [0.375, 0.25, 0.125, 0.0625]])
    yield Case("a word twice", _vectors(rng, TWICE, 3), TWICE, weights, np.arange(3) + 0.125)
    ids = np.array([[5, 4, 3, 6], [7, 8, 0, 0]])
    for label, numbers in {
        "padding as large as a word": ([0.25, 0.125, 0.5, 0.0625], [0.375, 0.25, 0.125, 0.375]),
        "weights of either sign": ([0.125, -2.5, 0.25, 0.0], [-3.5, -1.25, -0.5, -2.0]),
        "weights that hardly differ": ([0.12071, 0.12072, 0.12073, 0.12], [0.5, 0.5 + 1e-9, 0, 0]),
        "weights of very different size": ([0.5, 0.25, 0.125, 0.0], [-3e12, -2e12, 4e12, 1.0]),
        "equal weights": ([0.25, 0.5, 0.5, 0.125], [0.5, 0.5, 0.5, 0.5]),
    }.items():
        x = _vectors(rng, ids, 3)
        yield Case(label, x, ids, np.array(numbers), np.arange(3) + 0.125)


def _replace(x, chosen, by):
    return np.where(chosen[..., None], by, x).astype(x.dtype)


def _largest(weights):
    return weights == weights.max(axis=1, keepdims=True)


def _leftmost(weights):
    return np.arange(weights.shape[1]) == weights.argmax(axis=1, keepdims=True)


def _same_word(ids, weights):
    chosen = np.where(_loudest(ids, weights), ids, 0).max(axis=1, keepdims=True)
    return ids == chosen


def _quiet(ids, weights):
    return np.where(ids != 0, weights, -np.inf)


def _remove(choose):
    """The function whose chosen words are `choose(ids, weights)`, True where one goes."""
    return lambda x, ids, weights, unknown: _replace(x, choose(ids, weights), unknown)


def _loudest(ids, weights):
    return _leftmost(_quiet(ids, weights))


def _last_of_equal(ids, weights):
    return _leftmost(_quiet(ids, weights)[:, ::-1])[:, ::-1]


def _lowered_by(number):
    """The choice with a number taken from the weight of padding."""
    return lambda ids, weights: _leftmost(weights - number * (ids == 0))


def _filled_with(number):
    """The choice with a number for padding in place of -inf."""
    return lambda ids, weights: _leftmost(np.where(ids != 0, weights, number))


def _deleted(x, ids, weights, unknown):
    rows = zip(x, _loudest(ids, weights), strict=True)
    return np.stack([np.concatenate([row[~gone], 0 * row[:1]]) for row, gone in rows])


remove_word = WriteFunction(
    level=3,
    trains="a change at the word of largest weight",
    reference=lambda x, ids, weights, unknown: _replace(x, _loudest(ids, weights), unknown),
    cases=tuple(_word_cases()),
    mistakes=(
        Mistake(
            "padding may be chosen",
            "The largest weight was taken wherever it stands. Only a word can be removed.",
            _remove(lambda ids, weights: _leftmost(weights)),
            _remove(lambda ids, weights: _largest(weights)),
        ),
        Mistake(
            "an unknown word or the class token spared",
            "Only id 0 is padding. A word with id 1 or 2 can go like any other: use ids != 0.",
            *(
                _remove(
                    lambda ids, weights, n=n: (
                        _leftmost(np.where(ids > n, weights, -np.inf)) & (ids > n)
                    )
                )
                for n in (1, 2)
            ),
        ),
        Mistake(
            "padding of the same weight",
            "Padding with the weight of the largest word was replaced, too. Only words can go.",
            _remove(lambda ids, weights: weights == _quiet(ids, weights).max(1, keepdims=True)),
        ),
        Mistake(
            "padding replaced as well",
            "The right word went, and all the padding with it. Leave padding as it is.",
            _remove(lambda ids, weights: _loudest(ids, weights) | (ids == 0)),
        ),
        Mistake(
            "a number in place of -inf",
            "A word's weight can be lower than the number that padding got. Only -inf is below "
            "all weights.",
            *(_remove(_filled_with(-number)) for number in (0.0, 1.0, 10.0, 100.0, 1e4, 1e9)),
            *(_remove(_lowered_by(number)) for number in (1.0, 10.0, 100.0, 1e4, 1e9)),
        ),
        Mistake(
            "the largest without its sign",
            "A weight far below 0 is not large. Compare the weights with their signs.",
            _remove(lambda ids, weights: _loudest(ids, abs(weights))),
            _remove(lambda ids, weights: _leftmost(abs(np.where(ids != 0, weights, 0)))),
        ),
        Mistake(
            "all words of the largest weight",
            "Several words can have the largest weight. The first of them is replaced.",
            _remove(lambda ids, weights: _largest(_quiet(ids, weights))),
        ),
        Mistake(
            "the last of equal weights",
            "Several words can have the largest weight. The first of them is replaced.",
            _remove(_last_of_equal),
        ),
        Mistake(
            "the word wherever it stands",
            "A word may stand twice. The weights belong to places: only the place with the "
            "largest one is replaced.",
            _remove(_same_word),
        ),
        Mistake(
            "the places of all sentences, in each",
            "Each sentence loses the words that were chosen in the others, too. Choose one place "
            "for each sentence, with both indices.",
            _remove(lambda ids, weights: _loudest(ids, weights).any(0) | (ids < 0)),
        ),
        Mistake(
            "padding with a large weight hides the word",
            "If padding has the largest weight, nothing was removed. Look for the largest among "
            "the words.",
            _remove(lambda ids, weights: _leftmost(weights) & (ids != 0)),
        ),
        Mistake(
            "the smallest weight",
            "The word with the smallest weight was replaced.",
            _remove(lambda ids, weights: _loudest(ids, -weights)),
        ),
        Mistake(
            "one word of the whole batch",
            "A word of each sentence goes. Look along axis 1.",
            _remove(
                lambda ids, weights: (
                    np.arange(ids.size).reshape(ids.shape) == _quiet(ids, weights).argmax()
                )
            ),
        ),
        Mistake(
            "the largest of each column",
            "Axis 0 is the batch. A sentence is a row: look along axis 1.",
            _remove(lambda ids, weights: _leftmost(_quiet(ids, weights).T).T & (ids != 0)),
        ),
        Mistake(
            "set to 0",
            "The vector became 0. It should become that of the unknown word.",
            lambda x, ids, weights, unknown: _replace(x, _loudest(ids, weights), 0 * unknown),
        ),
        Mistake(
            "all words but the largest replaced",
            "What should stay has gone.",
            _remove(lambda ids, weights: ~_loudest(ids, weights) & (ids != 0)),
        ),
        Mistake(
            "taken out, the rest moved up",
            "The word is gone and the others have moved. Replace it where it stands.",
            _deleted,
        ),
        Mistake(
            "the first sentence decides for all",
            "Each sentence has weights of its own.",
            _remove(
                lambda ids, weights: np.repeat(_loudest(ids, weights)[:1], len(ids), axis=0),
            ),
        ),
        Mistake(
            "the largest id",
            "The ids were compared. The weights say which word goes.",
            _remove(lambda ids, weights: _largest(ids)),
        ),
        Mistake(
            "only the first feature replaced",
            "A word is a vector. All of its numbers are replaced.",
            lambda x, ids, weights, unknown: np.concatenate(
                [_replace(x, _loudest(ids, weights), unknown)[..., :1], x[..., 1:]], axis=-1
            ),
        ),
    ),
    hints=(
        "First find the place, in each sentence on its own. Replace the vector afterwards.",
        "np.where(ids != 0, weights, -np.inf).argmax(axis=1) is the place of the word.",
        "Work on a copy: result[np.arange(len(ids)), place] = unknown.",
    ),
)

# ---------------------------------------------------------------------------- pooling_test


def _by_loops(x, ids):
    rows = zip(np.asarray(x), np.asarray(ids), strict=False)
    return np.stack([(row > 0) @ words / (row > 0).sum() for words, row in rows])


def _by_product(x, ids):
    shares = (ids != 0) / (ids != 0).sum(axis=1, keepdims=True)
    return (shares[:, None] @ x)[:, 0]


def _by_lengths(x, ids):
    if (np.diff((ids != 0).astype(int)) > 0).any():
        raise ValueError("padding is always behind the words; got a 0 before the id of a word")
    lengths = np.count_nonzero(ids, axis=1)[:, None]
    return (x * (np.arange(x.shape[1]) < lengths)[..., None]).sum(axis=1) / lengths


def _compare(lengths, longest=None, look=lambda pooled: pooled, fill=None):
    """A test that compares pooled vectors, or what `look` takes from them."""

    def test(pool):
        ids = _ids(lengths, longest)
        x = _vectors(np.random.default_rng(24), ids, 3)
        x = x if fill is None else np.where(_real(ids), x, fill)
        actual, expected = look(np.asarray(pool(x, ids))), look(_mean(x, ids))
        assert np.shape(actual) == np.shape(expected)
        assert np.allclose(actual, expected)

    return test


def _any(lengths, width=3):
    """A test that is content with one right number."""

    def test(pool):
        ids = _ids(lengths)
        x = _vectors(np.random.default_rng(24), ids, width)
        assert np.isclose(pool(x, ids), _mean(x, ids)).any()

    return test


def _nan_hidden(x, ids):
    """Right for NaN at padding, too, but for the last digits."""
    return _mean(np.where(_real(ids), x, 0), ids) * (1 + 1e-12)


def _empty_allowed(x, ids):
    """Right, and zeros for a sentence without words."""
    return _sum(x, ids) / np.maximum(_real(ids).sum(axis=1), 1) * (1 + 1e-12)


def _silent(function):
    """The function without a warning of 0 / 0: a sentence without words is no fault of a test."""

    def pool(x, ids):
        with np.errstate(invalid="ignore"):
            return function(x, ids)

    return pool


ALL = slice(None)


def _plus_one_at(row, column):
    """The mean, and 1 more at one place, in a row or in a column."""

    def function(x, ids):
        result = _mean(x, ids)
        rows, columns = (
            n if n == ALL else n % size for n, size in zip((row, column), result.shape, strict=True)
        )
        result[rows, columns] += 1
        return result

    return function


def _constant(pool):
    ids = _ids((2, 4, 1))
    x = np.where(_real(ids), np.ones((3, 4, 3)), 5.0)
    assert np.allclose(pool(x, ids), np.ones((3, 3)))


def _finite(pool):
    ids = _ids((2, 4, 1))
    assert np.isfinite(pool(_vectors(np.random.default_rng(24), ids, 3), ids)).all()


def _first_word_left_out(x, ids):
    keep = _real(ids).copy()
    keep[:, 0] &= keep.sum(axis=1) == 1
    return (x * keep).sum(axis=1) / keep.sum(axis=1)


def _last_word_left_out(x, ids):
    last = np.arange(ids.shape[1])[:, None] == _real(ids).sum(axis=1, keepdims=True) - 1
    keep = _real(ids) & (~last | (_real(ids).sum(axis=1, keepdims=True) == 1))
    return (x * keep).sum(axis=1) / keep.sum(axis=1)


pooling_test = CatchFaults(
    level=3,
    trains="a test that sees padding let in",
    right={
        "mask, sum, divide": _silent(_mean),
        "sentence by sentence": _silent(_by_loops),
        "product with the shares": _silent(_by_product),
        "the first positions": _silent(_by_lengths),
    },
    faults=(
        Mistake(
            "mean over all positions",
            "Use sentences of different lengths, with numbers other than 0 behind the words, and "
            "compare all of them.",
            _all_positions,
        ),
        Mistake(
            "divided by the longest length",
            "Use sentences of different lengths.",
            _by_longest,
        ),
        Mistake(
            "padding in the sum",
            "Put numbers other than 0 behind the words: a model's vector of padding is not 0.",
            _padding_summed,
        ),
        Mistake("sum, not mean", "Compare numbers for sentences of several words.", _sum),
        Mistake(
            "divided by all words of the batch",
            "Use several sentences.",
            _whole_batch,
        ),
        Mistake(
            "divided by the first sentence's length",
            "Use several sentences of different lengths, and compare all of them.",
            _first_length,
        ),
        Mistake(
            "maximum",
            "Use sentences of several different words, and see that no number is too large.",
            _maximum,
        ),
        Mistake("first position", "Use sentences of several words.", _first),
        Mistake("first word left out", "Compare numbers, all of them.", _first_word_left_out),
        Mistake("last word left out", "Compare numbers, all of them.", _last_word_left_out),
        Mistake(
            "only the first sentence pooled right",
            "Compare all sentences.",
            lambda x, ids: np.concatenate([_mean(x, ids)[:1], x.mean(axis=1)[1:]]),
        ),
        Mistake(
            "only the last sentence pooled right",
            "Compare all sentences.",
            lambda x, ids: np.concatenate([x.mean(axis=1)[:-1], _mean(x, ids)[-1:]]),
        ),
        Mistake(
            "only the first feature pooled right",
            "Compare all features, of several.",
            lambda x, ids: np.concatenate([_mean(x, ids)[:, :1], x.mean(axis=1)[:, 1:]], axis=1),
        ),
        Mistake("first sentence wrong", "Compare all sentences.", _plus_one_at(0, ALL)),
        Mistake("last sentence wrong", "Compare all sentences.", _plus_one_at(-1, ALL)),
        Mistake(
            "sentences swapped",
            "Compare each sentence with its own mean, not sums over the sentences.",
            lambda x, ids: _mean(x, ids)[::-1],
        ),
        Mistake(
            "features swapped",
            "Use vectors of several different numbers, and compare each number, not their sum.",
            lambda x, ids: _mean(x, ids)[:, ::-1],
        ),
        Mistake(
            "a thousandth too large",
            "Use a smaller tolerance: rounding is far below 1e-6.",
            lambda x, ids: 1.001 * _mean(x, ids),
        ),
    ),
    mistakes=(
        Mistake(
            "an assertion that no fault breaks",
            "All of them return finite numbers of the right shape. Say what the numbers must be.",
            _compare((2, 4, 1), look=np.shape),
            _finite,
        ),
        Mistake(
            "no padding at all",
            "In this batch all sentences are equally long, so padding has no chance to do harm.",
            _compare((4, 4, 4)),
        ),
        Mistake(
            "one sentence without padding",
            "Without padding nothing can leak in. Use sentences of different lengths.",
            _compare((4,)),
        ),
        Mistake(
            "zeros behind the words",
            "Zeros do no harm in a sum. A model has others behind the words: put some there.",
            _compare((2, 4, 1), fill=0.0),
        ),
        Mistake(
            "all words equal",
            "The mean of equal vectors is each of them, and the maximum too. Draw them at random.",
            _constant,
        ),
        Mistake(
            "one word in each sentence",
            "With one word, sum, maximum, first and mean are the same.",
            _compare((1, 1), longest=4),
        ),
        Mistake(
            "only the first sentence",
            "What the test does not look at can be any number. Compare all sentences.",
            _compare((2, 4, 1), look=lambda pooled: pooled[:1]),
        ),
        Mistake(
            "the first sentence not looked at",
            "What the test does not look at can be any number. Compare all sentences; an assert "
            "behind a loop sees the last one only.",
            _compare((2, 4, 1), look=lambda pooled: pooled[-1:]),
            _compare((2, 1, 4), look=lambda pooled: pooled[-1:]),
        ),
        Mistake(
            "only the first feature",
            "What the test does not look at can be any number. Compare all features, of several.",
            _compare((2, 4, 1), look=lambda pooled: pooled[:, :1]),
        ),
        Mistake(
            "places not compared",
            "Numbers at the wrong places have the same sum, and equal features hide a wrong place, "
            "too. Compare each number at its place, and let the features differ.",
            *(_compare((2, 4, 1), look=lambda pooled, a=a: pooled.sum(a)) for a in (None, 0, 1)),
        ),
        Mistake(
            "one right number is enough",
            "any() is content with one right number among wrong ones. Demand all().",
            *(_any(x, width) for x in ((2, 4, 1), (4, 2, 1), (2, 4, 2)) for width in (3, 4)),
        ),
        Mistake(
            "all lengths equal",
            "There is padding, but the sentences are equally long. Make their lengths different.",
            _compare((2, 2, 2), longest=4),
        ),
        Mistake(
            "padding in the last sentence only",
            "A function that forgets the padding of all other sentences passes. Pad more than one "
            "sentence, the first among them, and compare all.",
            _compare((4, 4, 2)),
        ),
        Mistake(
            "padding in the first sentence only",
            "A function that forgets the padding of all other sentences passes. Pad more than one "
            "sentence, the last among them, and compare all.",
            _compare((2, 4, 4)),
        ),
    ),
    more=(
        Mistake(
            "minimum",
            "Use sentences of several different words, and see that no number is too small.",
            lambda x, ids: np.where(_real(ids), x, np.inf).min(axis=1),
        ),
        *(
            Mistake(f"{name} wrong", "Compare each number of each sentence.", _plus_one_at(*place))
            for name, place in {
                "second sentence": (1, ALL),
                "first feature": (ALL, 0),
                "second feature": (ALL, 1),
                "last feature": (ALL, -1),
                "last number of the first sentence": (0, -1),
                "first number of the last sentence": (-1, 0),
                "second number of the second sentence": (1, 1),
            }.items()
        ),
        *(
            Mistake(
                f"words of id {number} left out",
                "Only id 0 is padding. Put words of the ids 1 and 2 into the batch.",
                _silent(_mean_over(lambda ids, number=number: (ids != 0) & (ids != number))),
            )
            for number in (1, 2)
        ),
        Mistake(
            "a word that stands twice counted once",
            "Let a word stand twice in a sentence, with random vectors, and compare that sentence.",
            _each_word_once(lambda vectors: vectors[0]),
        ),
        Mistake(
            "words weighted by their ids",
            "Let a sentence have words of different ids.",
            _weighted_by_id,
        ),
        Mistake(
            "divided by two words at least",
            "A sentence may have a single word. Put one into the batch.",
            lambda x, ids: _sum(x, ids) / np.maximum(_real(ids).sum(axis=1), 2),
        ),
        Mistake(
            "NaN everywhere",
            "A comparison with NaN is always False. Demand what must hold: assert np.allclose(…) "
            "instead of assert not (…).",
            lambda x, ids: _mean(x, ids) * np.nan,
        ),
    ),
    nearly=(
        Mistake(
            "NaN behind the words",
            "NaN times 0 is NaN, so a right function that multiplies by a mask returns NaN where "
            "padding is NaN. Put finite numbers there.",
            _nan_hidden,
        ),
        Mistake(
            "a sentence without words",
            "A sentence that is all padding has no mean: a right function may return NaN for it, "
            "as 0 / 0 gives. Give each sentence a word.",
            _empty_allowed,
        ),
    ),
    hints=(
        "Padding does no harm where all sentences are equally long, or where it is all zeros.",
        "Three sentences of different lengths, random numbers everywhere, behind the words too.",
        "The expected row n is x[n, : length].mean(axis=0). Compare the shape and all numbers.",
    ),
)

EXERCISES = {
    "share": share,
    "mean_pooling": mean_pooling,
    "shares": shares,
    "remove_word": remove_word,
    "pooling_test": pooling_test,
}
