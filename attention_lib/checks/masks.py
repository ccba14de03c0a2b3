"""The exercises of chapter 6, masks: references, cases, known mistakes, hints."""

from functools import partial

import numpy as np
import torch

from attention_lib.checks.engine import Case, CatchFaults, Mistake, PredictValue, WriteFunction
from attention_lib.lookup import softmax
from attention_lib.masks import causal_mask, combine_masks, padding_mask
from attention_lib.single_head import scaled_dot_product_attention

# ---------------------------------------------------------------------------- visible_pairs

LENGTHS, SIZE = (5, 2), 5


def _visible_pairs():
    return int(combine_masks(causal_mask(SIZE), padding_mask([*LENGTHS], SIZE)).sum())


def _pairs(allowed, samples=LENGTHS):
    """How many pairs `allowed(query, key, length)` allows."""
    places = range(SIZE)
    return sum(bool(allowed(i, j, n)) for n in samples for i in places for j in places)


visible_pairs = PredictValue(
    level=1,
    trains="a causal and a padding mask together",
    answer=_visible_pairs,
    mistakes=(
        Mistake(
            "rows of the padding left out",
            "Only keys are hidden, and padding stands on the right. A query in a padded place has "
            "a row too, and may attend to the words before it.",
            _pairs(lambda i, j, n: j <= i < n),
        ),
        Mistake(
            "padding alone",
            "That mask hides padding and allows the future. Of the keys of a row, which ones stand "
            "behind the query?",
            _pairs(lambda i, j, n: j < n),
        ),
        Mistake(
            "the triangle alone",
            "That is the causal mask for both sentences. The second sentence has only 2 words that "
            "can be seen.",
            _pairs(lambda i, j, n: j <= i),
        ),
        Mistake(
            "blocked pairs counted",
            "These are the pairs that the mask blocks. The question is about the allowed ones.",
            _pairs(lambda i, j, n: j > i or j >= n),
        ),
        Mistake(
            "own position left out",
            "A word may attend to itself: the diagonal is allowed.",
            _pairs(lambda i, j, n: j < i and j < n),
        ),
        Mistake(
            "or in place of and",
            "A pair must be allowed by both masks, not by one of them.",
            _pairs(lambda i, j, n: j <= i or j < n),
        ),
        Mistake(
            "one sentence alone",
            "That is one of the two sentences. Count both.",
            _pairs(lambda i, j, n: j <= i and j < n, LENGTHS[:1]),
            _pairs(lambda i, j, n: j <= i and j < n, LENGTHS[1:]),
        ),
        Mistake(
            "all pairs",
            "That is every query with every key. What do the two masks leave of them?",
            2 * SIZE * SIZE,
        ),
    ),
    hints=(
        "The first sentence has no padding: its table is the triangle.",
        "In the second one, query 0 sees one key, and no query sees more than 2.",
        "Add the rows: 1, 2, 3, 4, 5 for the first sentence; 1, 2, 2, 2, 2 for the second.",
    ),
)

# ---------------------------------------------------------------------------- batch_mask


def _batch_mask(lengths, size, hide=np.less, see=np.less_equal, join=np.logical_and):
    """Keys that `hide` allows before the length, joined with those that `see` allows."""
    places = np.arange(size)
    real = hide(places, np.asarray(lengths)[:, None, None, None])
    return join(real, see(places, places[:, None]))


def _always(*arrays):
    return np.ones(np.broadcast_shapes(*map(np.shape, arrays)), dtype=bool)


def _queries_hidden(lengths, size):
    real = np.arange(size) < lengths[:, None]
    return real[:, None, :, None] & np.tril(np.ones((size, size), dtype=bool))


def _padding_left(lengths, size):
    real = np.arange(size) >= size - lengths[:, None, None, None]
    return real & np.tril(np.ones((size, size), dtype=bool))


def _as_queries_and_keys(lengths, size):
    """The padding without its two axes in the middle: an error for most sizes."""
    return np.tril(np.ones((size, size), dtype=bool)) & (np.arange(size) < lengths[:, None])


BATCHES = {
    "one place": ([1], 1), "two places": ([1], 2), "a batch of two": ([2, 1], 2),
    "as many samples as places": ([1, 3, 2], 3), "places behind all sentences": ([2, 1], 4),
    "a sentence of length 0": ([3, 0], 3), "no padding": ([4, 4], 4),
    "a larger batch": ([5, 1, 3, 4], 5),
}  # fmt: skip

batch_mask = WriteFunction(
    level=2,
    trains="masks for sentences of different lengths",
    reference=lambda lengths, size: _batch_mask(lengths, size),
    cases=tuple(Case(label, np.array(n), size) for label, (n, size) in BATCHES.items()),
    mistakes=(
        Mistake(
            "upside down",
            "True and False are exchanged: here True means may attend.",
            lambda n, size: ~_batch_mask(n, size),
        ),
        Mistake(
            "the triangle is missing",
            "Padding is hidden, and the future is not.",
            partial(_batch_mask, see=_always),
            lambda n, size: _batch_mask(n, size, see=_always)[:, :, :1],
        ),
        Mistake(
            "the padding is missing",
            "The future is hidden, and padding is not.",
            partial(_batch_mask, hide=_always),
            lambda n, size: _batch_mask(n, size, hide=_always)[:1],
        ),
        Mistake(
            "rows of padding masked",
            "Only keys are hidden: the length limits the columns. Masking the rows of padded "
            "queries makes queries that may attend to nothing.",
            _queries_hidden,
        ),
        Mistake(
            "the triangle turned",
            "A query sees what comes after it. Its keys are those up to its own place.",
            partial(_batch_mask, see=np.greater_equal),
        ),
        Mistake(
            "own position blocked",
            "A word may attend to itself. Without that, the first word may attend to nothing.",
            partial(_batch_mask, see=np.less),
        ),
        Mistake(
            "one word of the future",
            "Each query sees one key too many: the word after it.",
            partial(_batch_mask, see=lambda j, i: j <= i + 1),
        ),
        Mistake(
            "one padding token too many",
            "A sentence of n words fills places 0 to n - 1: place n is padding already.",
            partial(_batch_mask, hide=np.less_equal),
        ),
        Mistake(
            "or in place of and",
            "A pair is allowed if both masks allow it.",
            partial(_batch_mask, join=np.logical_or),
        ),
        Mistake(
            "no axis for the heads",
            "The mask is (batch, size, size). Heads need an axis of size 1 behind the batch.",
            lambda n, size: _batch_mask(n, size)[:, 0],
        ),
        Mistake(
            "padding as (batch, size)",
            "Two axes line up with queries and keys: one sentence hides keys from one query, or "
            "the shapes do not fit. Put two axes of size 1 between the batch and the keys.",
            _as_queries_and_keys,
            lambda n, size: _as_queries_and_keys(n, size)[:, None],
            lambda n, size: _as_queries_and_keys(n, size)[None, None],
        ),
        Mistake(
            "padding on the left",
            "The first places are hidden here. Padding stands on the right, behind the words.",
            _padding_left,
        ),
        Mistake(
            "rows and columns exchanged",
            "Queries are the rows, the third axis, and keys the columns, the last one.",
            lambda n, size: _batch_mask(n, size).swapaxes(2, 3),
        ),
        Mistake(
            "padding sees itself",
            "The diagonal is allowed everywhere here. Padding is hidden from every query, its own "
            "included.",
            lambda n, size: _batch_mask(n, size) | np.eye(size, dtype=bool),
        ),
        Mistake(
            "padding sees itself alone",
            "A padded query is a row like any other: it may attend to the words before it, and not "
            "to its own place, which is padding.",
            lambda n, size: _queries_hidden(n, size) | np.eye(size, dtype=bool),
        ),
    ),
    hints=(
        "Two masks are needed: which keys are words, (batch, 1, 1, size), and the triangle, "
        "(size, size).",
        "places = np.arange(size). Keys that are words: places < lengths[:, None, None, None].",
        "The triangle is places <= places[:, None]. Combine the two with &.",
    ),
)

# ---------------------------------------------------------------------------- one_mask


def _one_mask(attn_mask, key_padding_mask):
    return ~(attn_mask | key_padding_mask[:, None, None, :])


def _blocked_cases():
    rng = np.random.default_rng(25)

    def triangle(size):
        return np.triu(np.ones((size, size), dtype=bool), 1)

    yield Case("one query and key", np.array([[False]]), np.array([[False], [True]]))
    yield Case("one query, two keys", np.array([[False, True]]), np.array([[False, False]]))
    yield Case("two queries, one key", np.array([[True], [False]]), np.array([[False]]))
    yield Case("two words", triangle(2), np.array([[False, True]]))
    yield Case("a causal mask and two samples", triangle(3),
               np.array([[False, False, True], [False, False, False]]))  # fmt: skip
    yield Case("as many samples as words", triangle(3), rng.random((3, 3)) < 0.4)
    for batch, length, keys in ((2, 3, 4), (3, 4, 2), (4, 4, 4)):
        yield Case(
            "random masks", rng.random((length, keys)) < 0.5, rng.random((batch, keys)) < 0.5
        )


one_mask = WriteFunction(
    level=2,
    trains="PyTorch's two masks in this book's one",
    reference=lambda attn_mask, key_padding_mask: _one_mask(attn_mask, key_padding_mask),
    cases=tuple(_blocked_cases()),
    mistakes=(
        Mistake(
            "True still means blocked",
            "The two masks are joined right, but in PyTorch's convention. Here True means may "
            "attend.",
            lambda a, p: ~_one_mask(a, p),
        ),
        Mistake(
            "attn_mask not inverted",
            "attn_mask is taken as if True meant may attend.",
            lambda a, p: _one_mask(~a, p),
        ),
        Mistake(
            "key_padding_mask not inverted",
            "key_padding_mask is taken as if True meant may attend.",
            lambda a, p: _one_mask(a, ~p),
        ),
        Mistake(
            "neither inverted",
            "Both masks are joined by and, as if True meant may attend. In both it means blocked.",
            lambda a, p: _one_mask(~a, ~p),
        ),
        Mistake(
            "or in place of and",
            "A pair is allowed only if neither mask blocks it: one of them is enough to block.",
            lambda a, p: ~(a & p[:, None, None, :]),
        ),
        Mistake(
            "attn_mask alone",
            "The padding is left out.",
            lambda a, p: np.broadcast_to(~a, (len(p), 1, *a.shape)),
            lambda a, p: ~a,
        ),
        Mistake(
            "key_padding_mask alone",
            "attn_mask is left out.",
            lambda a, p: np.broadcast_to(~p[:, None, None], (len(p), 1, *a.shape)),
            lambda a, p: ~p[:, None, None],
        ),
        Mistake(
            "padding on the queries",
            "The padding runs along the rows here. It hides keys: the last axis.",
            lambda a, p: ~(a | p[:, None, :, None]),
        ),
        Mistake(
            "padding on the queries as well",
            "The padding runs along the rows and the columns here. It hides keys only: the last "
            "axis.",
            lambda a, p: _one_mask(a, p) & ~p[:, None, :, None],
            lambda a, p: (
                _one_mask(a, p) & ~p[:, None, :, None] if len(a) == len(a.T) else _one_mask(a, p)
            ),
        ),
        Mistake(
            "attn_mask transposed",
            "The rows of attn_mask are queries already, and its columns keys.",
            lambda a, p: _one_mask(a.T, p),
        ),
        Mistake(
            "exactly one in place of any",
            "^ asks whether exactly one of the two is True. A pair is allowed if neither of the "
            "two blocks it.",
            lambda a, p: ~(a ^ p[:, None, None, :]),
            lambda a, p: ~a ^ ~p[:, None, None, :],
        ),
        Mistake(
            "padding as (batch, S)",
            "Two axes line up with queries and keys, or do not fit at all. Put two axes of size 1 "
            "between the batch and the keys.",
            lambda a, p: ~(a | p),
            lambda a, p: ~(a | p)[:, None],
            lambda a, p: ~(a | p)[None, None],
        ),
        Mistake(
            "no axis for the heads",
            "The mask is (batch, L, S). Heads need an axis of size 1 behind the batch.",
            lambda a, p: _one_mask(a, p)[:, 0],
        ),
    ),
    hints=(
        "The padding needs two more axes, for heads and queries: (batch, 1, 1, S).",
        "A pair is blocked if one of the two blocks it: attn_mask | key_padding_mask[:, None, "
        "None, :].",
        "Allowed is what is not blocked: ~ of that.",
    ),
)

# ---------------------------------------------------------------------------- decoding_mask


def _decoding_mask(length, keys, more=0):
    return np.tril(np.ones((length, keys), dtype=bool), keys - length + more)


def _fixed_offset(offset, length, keys):
    return np.tril(np.ones((length, keys), dtype=bool), offset)


NEW_AND_ALL = {
    "one word": (1, 1), "one new word": (1, 3), "two words, both new": (2, 2),
    "two new words": (2, 4), "three new words": (3, 4), "a longer sentence": (3, 7),
    "all words new": (4, 4), "four new words": (4, 9),
}  # fmt: skip

decoding_mask = WriteFunction(
    level=2,
    trains="a causal mask with fewer queries than keys",
    reference=lambda length, keys: _decoding_mask(length, keys),
    cases=tuple(Case(label, *sizes) for label, sizes in NEW_AND_ALL.items()),
    mistakes=(
        Mistake(
            "the fault is still there: top left",
            "Query 0 stands at key 0 here. It is the first of the new words, so all earlier ones "
            "stand before it.",
            lambda length, keys: np.tril(np.ones((length, keys), dtype=bool)),
        ),
        Mistake(
            "one word of the future",
            "Each query sees one key too many: the word after it.",
            partial(_decoding_mask, more=1),
        ),
        Mistake(
            "own position blocked",
            "A word may attend to itself, and the last query to the last key.",
            partial(_decoding_mask, more=-1),
        ),
        Mistake(
            "offset turned",
            "The offset is keys - length: the diagonal moves to the right.",
            lambda length, keys: np.tril(np.ones((length, keys), dtype=bool), length - keys),
        ),
        Mistake(
            "another offset",
            "The offset is the number of words before the new ones, keys - length.",
            lambda length, keys: np.tril(np.ones((length, keys), dtype=bool), length),
            lambda length, keys: np.tril(np.ones((length, keys), dtype=bool), length - 1),
            lambda length, keys: np.tril(np.ones((length, keys), dtype=bool), length + 1),
        ),
        Mistake(
            "the offset of one example",
            "An offset that never changes fits one pair of length and keys, such as the 2 and 4 of "
            "the printed mask. It depends on both.",
            *(partial(_fixed_offset, k) for k in (2, 1, 3)),
        ),
        Mistake(
            "keys from right to left",
            "The keys run backwards here. Column 0 is the first word of the sentence.",
            lambda length, keys: _decoding_mask(length, keys)[:, ::-1],
            lambda length, keys: np.tril(np.ones((length, keys), dtype=bool))[:, ::-1],
        ),
        Mistake(
            "upside down",
            "True and False are exchanged: here True means may attend.",
            lambda length, keys: ~_decoding_mask(length, keys),
        ),
        Mistake(
            "the triangle turned",
            "A query sees what comes after it. np.tril keeps what is below the diagonal, np.triu "
            "what is above.",
            lambda length, keys: np.triu(np.ones((length, keys), dtype=bool), keys - length),
        ),
        Mistake(
            "earlier keys hidden",
            "The triangle of the new words is right. The keys before them may be seen, too.",
            lambda length, keys: _decoding_mask(length, keys) & (np.arange(keys) >= keys - length),
        ),
        Mistake(
            "everything allowed",
            "The last query may see all keys. Those before it may not see the words after them.",
            lambda length, keys: np.ones((length, keys), dtype=bool),
        ),
        Mistake(
            "axes exchanged",
            "Queries are the rows and keys the columns: (length, keys).",
            lambda length, keys: _decoding_mask(length, keys).T,
        ),
    ),
    hints=(
        "The last query stands at the last key. How many keys stand before query 0?",
        "keys - length words are old, so query 0 stands at key keys - length.",
        "np.tril(…, k) moves the diagonal by k to the right.",
    ),
)

# ---------------------------------------------------------------------------- masked_softmax


def _masked_softmax(scores, mask):
    dead = ~mask.any(axis=-1, keepdims=True)
    filled = np.where(mask | dead, scores, -np.inf)
    e = np.exp(filled - filled.max(axis=-1, keepdims=True))
    return np.where(dead, 0.0, e / e.sum(axis=-1, keepdims=True))


def _naive(scores, mask, empty=0.0, blocked=np.nan):
    """`blocked` is what a blocked key gets where the sum of its row is 0."""
    e = np.where(mask, np.exp(scores), 0.0)
    total = e.sum(axis=-1, keepdims=True)
    weights = np.where(mask, e / total, np.where(total == 0, blocked, 0.0))
    return np.where(mask.any(axis=-1, keepdims=True), weights, empty)


def _naive_product(scores, mask):
    e = np.exp(scores) * mask
    total = e.sum(axis=-1, keepdims=True)
    return np.where(total == 0, 0.0, e / total)


def _naive_guarded(cut):
    """Divided where the sum of a row is above 0 only; `cut` sets the blocked exponentials to 0."""

    def function(scores, mask):
        e = cut(np.exp(scores), mask)
        total = e.sum(axis=-1, keepdims=True)
        return np.divide(e, total, out=np.zeros_like(e), where=total > 0)

    return function


def _late(scores, mask, empty=0.0):
    weights = softmax(scores) * mask
    total = weights.sum(axis=-1, keepdims=True)
    return np.where(mask.any(axis=-1, keepdims=True), weights / total, empty)


def _late_and_mended(scores, mask):
    """0 wherever 0 / 0 came up."""
    return np.nan_to_num(_late(scores, mask, np.nan))


def _global_maximum(scores, mask, dead=None):
    """The largest allowed score of all rows subtracted; `dead` is what a dead row becomes."""
    filled = np.where(mask, scores, -np.inf)
    e = np.exp(filled - filled.max())
    weights = e / e.sum(axis=-1, keepdims=True)
    return weights if dead is None else np.where(mask.any(axis=-1, keepdims=True), weights, dead)


def _guarded(small, largest=np.ones_like):
    """`small` added to the divisor; the maximum is taken where `largest` of the mask is True."""

    def function(scores, mask):
        of = np.where(largest(mask), scores, -np.inf)
        top = of.max(axis=-1, keepdims=True)
        e = np.where(mask, np.exp(scores - np.where(np.isinf(top), 0, top)), 0.0)
        return e / (e.sum(axis=-1, keepdims=True) + small)

    return function


def _uniform_is_dead(scores, mask):
    weights = softmax(np.where(mask, scores, -1e20))
    return np.where(np.isclose(weights, 1 / weights.shape[-1]).all(-1, keepdims=True), 0, weights)


def _columns(scores, mask):
    return _masked_softmax(scores.T, mask.T).T


def _fill_with(value):
    return lambda scores, mask: softmax(np.where(mask, scores, value))


def _dead_as(value):
    return lambda s, m: np.where(m.any(-1, keepdims=True), _masked_softmax(s, m), value)


def _score_cases():
    rng = np.random.default_rng(26)
    yield Case("two keys, one blocked", np.array([[1.0, 2.0]]), np.array([[True, False]]))
    yield Case("a dead row", np.array([[1.0, 2.0]]), np.array([[False, False]]))
    yield Case("equal scores", np.array([[1.0, 1.0]]), np.array([[True, True]]))
    yield Case("nothing blocked", np.array([[0.5, -1.0, 2.0]]), np.ones((1, 3), dtype=bool))
    yield Case("a causal mask", rng.normal(size=(3, 3)), np.tril(np.ones((3, 3), dtype=bool)))
    mixed = np.array([[True, False, True], [False, False, False], [False, True, True]])
    yield Case("a dead row among others", rng.normal(size=(3, 3)).round(2), mixed)
    for length, keys in ((2, 4), (4, 3), (5, 6)):
        mask = rng.random((length, keys)) < 0.6
        mask[0, 0] = True
        yield Case("random scores", rng.normal(size=(length, keys)), mask)
    large = np.array([[1000.0, 999.0, 0.0], [1.0, 2.0, 1000.0]])
    mask = np.array([[True, True, False], [True, True, False]])
    yield Case("large scores", large, mask, extreme=True)
    yield Case("very negative scores", np.array([[-2000.0, -2001.0, 5.0]]), mask[:1], extreme=True)
    low = np.array([[-20000.0, -20001.0, 5.0]])
    yield Case("scores far below 0", low, mask[:1], extreme=True)
    single = rng.normal(size=(2, 3)).astype(np.float32)
    yield Case("float32", single, np.array([[True, False, True], [True, True, True]]))


masked_softmax = WriteFunction(
    level=3,
    trains="rows that may attend to nothing",
    reference=lambda scores, mask: _masked_softmax(scores, mask),
    cases=tuple(_score_cases()),
    mistakes=(
        Mistake(
            "the fault is still there: dead rows are uniform",
            "A row whose keys are all blocked gets equal weights. Any finite fill value does that. "
            "Such a row should be 0.",
            _fill_with(-1e20),
            _fill_with(-1e4),
        ),
        Mistake(
            "uniform rows set to 0",
            "A row with equal weights is taken for one without keys. Equal scores give equal "
            "weights, too: ask the mask which rows have no key.",
            _uniform_is_dead,
        ),
        Mistake(
            "a fill that is not low enough",
            "Allowed scores may lie below the fill value, and then the blocked keys win. Below "
            "-np.inf lies nothing.",
            lambda s, m: _fill_with(-1e4)(s, m) * m,
            lambda s, m: _fill_with(-1e3)(s, m) * m,
        ),
        Mistake(
            "NaN in dead rows",
            "A row of -inf only gives 0 / 0 in the softmax. Take those rows out before, or set "
            "their weights to 0 after it.",
            _dead_as(np.nan),
        ),
        Mistake(
            "a dead row keeps its weights",
            "A row without any key runs through the softmax as if nothing were blocked. Set its "
            "weights to 0 afterwards.",
            lambda s, m: np.where(m.any(-1, keepdims=True), _masked_softmax(s, m), softmax(s)),
        ),
        Mistake(
            "one question for the whole mask",
            "Dead rows are asked for once, not for each row, and one among others is not found. "
            "mask.any(axis=-1, keepdims=True) asks for each row.",
            lambda s, m: _fill_with(-1e20)(s, m) * m.any(),
            lambda s, m: np.where(m.any(), _dead_as(np.nan)(s, m), 0.0),
        ),
        Mistake(
            "all in place of any",
            "A row counts as dead here if one of its keys is blocked. It is dead only if all of "
            "them are.",
            lambda s, m: _masked_softmax(s, m) * m.all(-1, keepdims=True),
        ),
        Mistake(
            "weights set to 0 after the softmax",
            "The rows do not sum to 1, and a blocked score still has influence: it is in the sum.",
            lambda s, m: softmax(s) * m,
        ),
        Mistake(
            "blocked scores set to 0",
            "A score of 0 is a score like any other: e^0 is 1, and the blocked key gets weight.",
            lambda s, m: softmax(s * m),
            lambda s, m: np.where(m.any(-1, keepdims=True), softmax(s * m), 0.0),
        ),
        Mistake(
            "blocked keys removed after the exponentials",
            "That is right on paper. Where a blocked score is large, what is left is 0 / 0: the "
            "largest score must be taken of the allowed keys.",
            _late,
            partial(_late, empty=np.nan),
            _late_and_mended,
        ),
        Mistake(
            "one maximum for all rows",
            "The largest score of all rows is subtracted. A row far below it is 0 / 0 then: take "
            "the maximum of each row.",
            partial(_global_maximum, dead=0.0),
            _global_maximum,
            lambda s, m: np.nan_to_num(_global_maximum(s, m)),
        ),
        Mistake(
            "a small number in the divisor",
            "It keeps a dead row from 0 / 0, but the rows do not sum to 1 any more. Ask the mask "
            "which rows have no key.",
            *(_guarded(10.0**-n) for n in (5, 6, 7, 8, 9)),
            *(_guarded(10.0**-n, np.asarray) for n in (5, 6, 7, 8)),
        ),
        Mistake(
            "exponentials overflow",
            "exp of a large score is infinite, and exp of a very negative one is 0. Subtract the "
            "largest allowed score of each row first.",
            _naive,
            partial(_naive, empty=np.nan),
            partial(_naive, blocked=0.0),
            partial(_naive, empty=np.nan, blocked=0.0),
            _naive_product,
            _naive_guarded(np.multiply),
            _naive_guarded(lambda e, mask: np.where(mask, e, 0.0)),
        ),
        Mistake(
            "mask upside down",
            "The keys that are blocked get the weights. True means may attend.",
            lambda s, m: _masked_softmax(s, ~m),
        ),
        Mistake(
            "softmax over the queries",
            "The columns sum to 1. Each query has a softmax of its own, over the last axis.",
            _columns,
        ),
        Mistake(
            "mask ignored",
            "These are the weights without any mask.",
            lambda s, m: softmax(s),
        ),
    ),
    hints=(
        "dead = ~mask.any(axis=-1, keepdims=True) says which rows have no key.",
        "Fill with -np.inf where neither the mask nor dead is True, so that a dead row keeps its "
        "scores and makes no NaN.",
        "After the softmax, np.where(dead, 0.0, weights).",
    ),
)

# ---------------------------------------------------------------------------- leak_test


def _floats(x):
    return np.asarray(x, dtype=float)


def _scores(x):
    return x @ x.T / np.sqrt(x.shape[-1])


def _by_library(x):
    x = torch.tensor(_floats(x))
    return scaled_dot_product_attention(x, x, x, is_causal=True).numpy()


def _word_by_word(x):
    x, outputs = _floats(x), []
    for i in range(len(x)):
        weights = np.zeros(len(x))
        weights[: i + 1] = softmax(x[: i + 1] @ x[i] / np.sqrt(x.shape[-1]))
        outputs.append(weights @ x)
    return np.array(outputs)


def _future_untouched(x):
    """Right, and the words of the future may even be NaN."""
    x = _floats(x)
    return np.array([_causal(x[: i + 1])[-1] for i in range(len(x))])


def _with(rule):
    """Attention with weights `rule(scores, triangle)`."""

    def attention(x):
        x = _floats(x)
        with np.errstate(all="ignore"):
            return rule(_scores(x), np.tril(np.ones((len(x), len(x)), dtype=bool))) @ x

    return attention


_causal = _with(_masked_softmax)  # the right one, in NumPy


def _sees(i_sees_j):
    def rule(scores, triangle):
        i, j = np.indices(scores.shape)
        return _masked_softmax(scores, i_sees_j(i, j))

    return _with(rule)


def _strict_and_filled(scores, triangle):
    strict = triangle & ~np.eye(len(scores), dtype=bool)
    return softmax(np.where(strict, scores, -1e9))


WORDS = np.random.default_rng(27).normal(size=(6, 3))


def _other_numbers(words):
    return words[:, ::-1] + 1


def _future(look=lambda y: y, cuts=(1, 2, 3, 4, 5), x=WORDS, change=_other_numbers):
    """A test that changes all words from each cut on and looks at a part of the outputs before."""

    def test(attention):
        before = np.asarray(attention(x))
        for cut in cuts:
            changed = x.copy()
            changed[cut:] = change(changed[cut:])
            after = np.asarray(attention(changed))
            np.testing.assert_allclose(look(after[:cut]), look(before[:cut]), atol=1e-9)

    return test


def _next_word(back=1):
    """A test that changes one word at a time and looks at one output, `back` places before it."""

    def test(attention):
        before = np.asarray(attention(WORDS))
        for place in range(back, 6):
            changed = WORDS.copy()
            changed[place] += 1
            after = np.asarray(attention(changed))[place - back]
            np.testing.assert_allclose(after, before[place - back], atol=1e-9)

    return test


def _past_is_used(attention):
    changed = WORDS.copy()
    changed[0] += 1
    before, after = np.asarray(attention(WORDS)), np.asarray(attention(changed))
    assert not np.allclose(before[-1], after[-1])


def _last_output(attention):
    np.testing.assert_allclose(np.asarray(attention(WORDS))[-1], _causal(WORDS)[-1], atol=1e-9)


def _equal_words(attention):
    np.testing.assert_allclose(attention(np.ones((6, 3))), np.ones((6, 3)), atol=1e-9)


CHANGE = "Change the words after a place, and compare all outputs before it."

leak_test = CatchFaults(
    level=3,
    trains="a test that sees a glimpse of the future",
    right={
        "a filled triangle": _causal,
        "the library's": _by_library,
        "word by word": _word_by_word,
    },
    faults=(
        Mistake("no mask", CHANGE, _sees(lambda i, j: j >= 0)),
        Mistake("the triangle turned", CHANGE, _sees(lambda i, j: j >= i)),
        Mistake(
            "one word too far",
            "Look at the word right before the change: it sees only the next one.",
            _sees(lambda i, j: j <= i + 1),
        ),
        Mistake(
            "the word after the next",
            "Each word sees the one after the next here, and not the next. Change all words from a "
            "place on, or compare all outputs before the one that changes.",
            _sees(lambda i, j: (j <= i) | (j == i + 2)),
        ),
        Mistake("weights set to 0 after the softmax", CHANGE, _with(lambda s, t: softmax(s) * t)),
        Mistake("blocked scores set to 0", CHANGE, _with(lambda s, t: softmax(s * t))),
        Mistake(
            "softmax over the queries",
            "Compare the numbers of the outputs; this one leaks through its sums.",
            _with(lambda s, t: softmax(np.where(t, s, -np.inf).T).T),
        ),
        Mistake(
            "only the first two words masked",
            "Use several words, and look at those behind the first two as well.",
            _sees(lambda i, j: (j <= i) | (i >= 2)),
        ),
        Mistake(
            "the first word sees all",
            "Look at the output of the first word, too: its row of the mask is empty, and it gets "
            "the mean of all words.",
            _with(_strict_and_filled),
        ),
        Mistake(
            "the first word sees the second",
            "Begin the change at the second word, too: the first one sees it, and no other.",
            _sees(lambda i, j: (j <= i) | ((i == 0) & (j == 1))),
        ),
        Mistake(
            "the first word sees the last",
            "A word may see one far behind it. Compare all outputs before the change, the first "
            "one too.",
            _sees(lambda i, j: (j <= i) | ((i == 0) & (j == j.max()))),
        ),
        Mistake(
            "a word in the middle sees the next",
            "Begin the change at every place: one word sees the next one here, and no other.",
            _sees(lambda i, j: (j <= i) | ((i == i.max() // 2) & (j == i + 1))),
        ),
    ),
    mistakes=(
        Mistake(
            "an assertion that no fault breaks",
            "Every fault passes: shapes are right, numbers are finite, and the same input gives "
            "the same output. Change the future and compare.",
            _future(np.shape),
            _future(np.isfinite),
        ),
        Mistake(
            "the future only put in another order",
            "An average does not depend on the order of its words: without a mask, nothing "
            "changes. Give the words of the future other numbers.",
            _future(change=lambda words: words[::-1]),
            _future(change=lambda words: np.roll(words, 1, axis=0)),
            _future(change=lambda words: words[::-1], cuts=(3,)),
            _future(change=lambda words: words[::-1], cuts=(4,)),
        ),
        Mistake(
            "only the first words",
            "At most the first two outputs are compared. A leak may begin behind them: use several "
            "words, and compare all outputs before the change.",
            _future(lambda y: y[:1], cuts=(3, 4, 5)),
            _future(lambda y: y[:1]),
            _future(lambda y: y[:2]),
            _future(cuts=(2,)),
            _future(cuts=(1, 2)),
            _future(cuts=(1, 2), x=WORDS[:3]),
            _future(cuts=(1,), x=WORDS[:2]),
        ),
        Mistake(
            "not every place of the change",
            "A word may see the next one and no other, and here some word is never compared with "
            "a change right behind it. Begin the change at every place.",
            _future(cuts=(5,)),
            _future(cuts=(3,)),
            _future(cuts=(1, 5)),
            _future(cuts=(3, 4, 5)),
        ),
        Mistake(
            "the first word left out",
            "All outputs are compared but the first. Its row of a mask is the one that goes wrong "
            "most easily.",
            _future(lambda y: y[1:]),
            _future(lambda y: y[1:], cuts=(4,)),
        ),
        Mistake(
            "neither the first word nor the one before the change",
            "Compare every output before the change, from the first word to the last.",
            _future(lambda y: y[1:-1]),
            _future(lambda y: y[1:-1], cuts=(4,)),
        ),
        Mistake(
            "one word changed, one output compared",
            "That finds a word which sees the next one. A word may see one farther behind it: "
            "change all words from a place on, or compare all outputs before.",
            _next_word(),
            _next_word(back=2),
        ),
        Mistake(
            "the past in place of the future",
            "This changes a word at the beginning and asks whether a later output changes. It "
            "must; a leak is the other direction.",
            _past_is_used,
        ),
        Mistake(
            "only the last word",
            "The last word may see all words, so no mask is needed for it. A leak shows at the "
            "words before.",
            _last_output,
        ),
        Mistake(
            "all words equal",
            "The average of equal words is the same whatever the weights are. Draw the words at "
            "random.",
            _equal_words,
        ),
        Mistake(
            "words of zeros",
            "The outputs before the change are averages of zeros, which are 0 whatever the weights "
            "are: a weight that the future changes does not show. Draw the words at random.",
            _future(x=np.zeros((6, 3))),
        ),
    ),
    nearly=(
        Mistake(
            "the future must be finite",
            "Only a version that never touches the future passes. Are the changed words NaN or "
            "infinite? 0 times NaN is NaN (6.12): take finite ones. If not, use a tolerance.",
            _future_untouched,
        ),
        Mistake(
            "own word demanded to be hidden",
            "A word may attend to itself, so its own output may change with it. Compare the "
            "outputs before the changed word only.",
            _sees(lambda i, j: j < i),
        ),
    ),
    hints=(
        "Run the function twice, on x and on a copy in which the words from some place on are "
        "others.",
        "The outputs before that place must be equal, from the first to the one right before it.",
        "Try every place, and compare with np.testing.assert_allclose and a tolerance.",
    ),
)

EXERCISES = {
    "visible_pairs": visible_pairs,
    "batch_mask": batch_mask,
    "one_mask": one_mask,
    "decoding_mask": decoding_mask,
    "masked_softmax": masked_softmax,
    "leak_test": leak_test,
}
