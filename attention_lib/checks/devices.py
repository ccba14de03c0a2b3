"""The exercises of chapter 15, devices: references, cases, known mistakes, hints."""

from functools import partial

import numpy as np

from attention_lib.checks.engine import Case, CatchFaults, Mistake, PredictValue, WriteFunction
from attention_lib.lookup import softmax

# ---------------------------------------------------------------------------- ring_bytes

RANKS, LENGTH, WIDTH, NUMBER = 4, 4096, 256, 2  # ranks, positions, all heads, bytes


def _ring_bytes():
    slice_length = LENGTH // RANKS
    return (RANKS - 1) * 2 * slice_length * WIDTH * NUMBER


def _with_backward(gradients):
    """Bytes of the backward pass, for gradients so many times as large as what they belong to."""
    return _ring_bytes() + gradients * RANKS * _ring_bytes() // (RANKS - 1)


ring_bytes = PredictValue(
    level=1,
    trains="counting what a ring sends",
    answer=_ring_bytes,
    mistakes=(
        Mistake(
            "one step too many",
            "These are as many sends as there are ranks. After the last use of a slice nobody "
            "needs it any more.",
            RANKS * _ring_bytes() // (RANKS - 1),
        ),
        Mistake(
            "one step alone",
            "That is one send. A rank passes on three slices: its own, and those that came to it, "
            "but for the last.",
            _ring_bytes() // (RANKS - 1),
        ),
        Mistake(
            "four times too much",
            "That is what all four send, or the whole sequence sent at every step. The question is "
            "about one rank, which sends a slice at a time.",
            RANKS * _ring_bytes(),
        ),
        Mistake(
            "half of it",
            "A number has two bytes in half precision, and the values travel as well as the keys: "
            "one of the two is left out.",
            _ring_bytes() // 2,
        ),
        Mistake(
            "numbers of the keys alone",
            "The values travel as well, and each number has two bytes in half precision.",
            _ring_bytes() // 4,
        ),
        Mistake(
            "the queries travel too",
            "Queries stay where they are. Keys and values travel.",
            3 * _ring_bytes() // 2,
        ),
        Mistake(
            "twice as much",
            "A number has two bytes, a rank sends three slices in the forward pass, and a slice is "
            "a quarter of the sequence: something is counted twice, or four times and the values "
            "not at all.",
            2 * _ring_bytes(),
        ),
        Mistake(
            "all keys once",
            "That is what the keys of the whole sequence take. One rank sends three slices, of "
            "keys and of values.",
            RANKS * _ring_bytes() // (RANKS - 1) // 2,
        ),
        Mistake(
            "the backward pass too",
            "The backward pass is in it: three more sends, and the gradients of four slices. The "
            "question is about the forward pass.",
            _with_backward(gradients=2) + _ring_bytes(),
            _with_backward(gradients=1) + _ring_bytes(),
        ),
        Mistake(
            "the backward pass alone",
            "These are three sends and the gradients of four slices, the bytes of the backward "
            "pass. The question is about the forward pass.",
            _with_backward(gradients=2),
            _with_backward(gradients=1),
        ),
        Mistake(
            "in another unit",
            "Counted in megabytes, kilobytes or bits the size is right. The question is for bytes.",
            _ring_bytes() / 1e6,
            _ring_bytes() / 2**20,
            _ring_bytes() / 1e3,
            _ring_bytes() / 2**10,
            8 * _ring_bytes(),
        ),
        Mistake(
            "more than keys and values",
            "These are the bytes with the numbers that the ranks compare before, or with the "
            "positions. The question is about keys and values.",
            _ring_bytes() + (RANKS - 1) * 72,
            _ring_bytes() + (RANKS - 1) * 8 * LENGTH // RANKS,
            _ring_bytes() + (RANKS - 1) * (72 + 8 * LENGTH // RANKS),
        ),
    ),
    hints=(
        "How many positions are in a slice, and how many slices does one rank send on?",
        "A slice has 1024 keys and 1024 values of 256 numbers, of two bytes each.",
        "2 * 1024 * 256 * 2 bytes in a step, and three steps.",
    ),
    tolerance=1e-9,
)

# ---------------------------------------------------------------------------- merge_slices

# parts, queries, width of the values
PARTS = {
    "one part": (1, 1, 1), "two parts of one number": (2, 1, 1), "one query": (3, 1, 2),
    "two queries": (2, 2, 3), "as many parts as queries": (3, 3, 2), "all sizes equal": (2, 2, 2),
    "all sizes different": (4, 3, 5),
}  # fmt: skip


def _merge_cases():
    rng = np.random.default_rng(51)
    for label, (parts, queries, width) in PARTS.items():
        yield Case(label, rng.normal(size=(parts, queries, width)).round(2),
                   (2 * rng.normal(size=(parts, queries))).round(2))  # fmt: skip
    outputs, lses = rng.normal(size=(2, 3, 2)).round(2), rng.normal(size=(2, 3)).round(2)
    yield Case("float32", outputs.astype(np.float32), lses.astype(np.float32))
    yield Case("large log-sum-exps (overflow)", outputs, lses + 900, extreme=True)
    apart = np.array([[0.0, 900.0], [1.0, 901.0]])
    yield Case("queries far apart", rng.normal(size=(2, 2, 2)).round(2), apart, extreme=True)


def _weighted(outputs, lses, weights):
    return (weights(lses)[..., None] * outputs).sum(axis=0)


def _overflowing(lses):
    return np.exp(lses) / np.exp(lses).sum(axis=0)


def _one_maximum(lses):
    e = np.exp(lses - lses.max())
    return e / e.sum(axis=0)


def _of_the_first_query(lses):
    return np.broadcast_to(softmax(lses[:, :1], axis=0), lses.shape)


def _over_all(lses):
    return softmax(lses.reshape(-1)).reshape(lses.shape)


def _one_after_the_other(outputs, lses):
    merged, so_far = outputs[0], lses[0]
    for part, lse in zip(outputs[1:], lses[1:], strict=True):
        share = 1 / (1 + np.exp(so_far - lse))[:, None]
        merged, so_far = (1 - share) * merged + share * part, lse
    return merged


merge_slices = WriteFunction(
    level=2,
    trains="merging partial results",
    reference=lambda outputs, lses: _weighted(outputs, lses, partial(softmax, axis=0)),
    cases=tuple(_merge_cases()),
    mistakes=(
        Mistake(
            "the fault is still there: averaged",
            "All parts count the same here. A part with larger scores, or with more keys, has a "
            "larger sum of exponentials, and counts more.",
            lambda outputs, lses: outputs.mean(axis=0),
        ),
        Mistake(
            "parts added",
            "Each part is an average already. Their sum is too large: the shares of the parts must "
            "add up to 1.",
            lambda outputs, lses: outputs.sum(axis=0),
        ),
        Mistake(
            "shares that do not add up to 1",
            "The parts are weighted by the sums of their exponentials, and not divided by the sum "
            "over all parts.",
            lambda outputs, lses: _weighted(outputs, lses, np.exp),
        ),
        Mistake(
            "log-sum-exps as shares",
            "They are logarithms. What counts is the sum of exponentials itself: take exp first.",
            lambda outputs, lses: _weighted(outputs, lses, lambda x: x / x.sum(axis=0)),
        ),
        Mistake(
            "log-sum-exps as factors",
            "They are logarithms, and may be negative. Shares are positive and add up to 1.",
            lambda outputs, lses: _weighted(outputs, lses, lambda x: x),
        ),
        Mistake(
            "softmax over the queries",
            "The parts of one query share out its weight: the first axis. These shares add up to "
            "1 over the queries.",
            lambda outputs, lses: _weighted(outputs, lses, partial(softmax, axis=1)),
        ),
        Mistake(
            "softmax over everything",
            "Each query has its own shares: the softmax runs over the parts alone.",
            lambda outputs, lses: _weighted(outputs, lses, _over_all),
        ),
        Mistake(
            "sign turned",
            "The part with the larger log-sum-exp counts less here. It counts more.",
            lambda outputs, lses: _weighted(outputs, -lses, partial(softmax, axis=0)),
        ),
        Mistake(
            "one part alone",
            "The other parts are lost.",
            lambda outputs, lses: outputs[0],
            lambda outputs, lses: outputs[-1],
        ),
        Mistake(
            "the largest part alone",
            "The part with the largest log-sum-exp takes everything. It gets the largest share.",
            lambda outputs, lses: np.take_along_axis(
                outputs, lses.argmax(axis=0)[None, :, None], axis=0
            )[0],
        ),
        Mistake(
            "exponentials overflow",
            "exp of a large log-sum-exp is infinite. Subtract the largest one first, as softmax "
            "does.",
            lambda outputs, lses: _weighted(outputs, lses, _overflowing),
        ),
        Mistake(
            "log-sum-exp of the last part kept",
            "One part after the other is right. Then the merged part needs a log-sum-exp, too: of "
            "all parts so far, not of the last one.",
            _one_after_the_other,
        ),
        Mistake(
            "one maximum for all queries",
            "The largest log-sum-exp of one query is subtracted from those of all. Where a query "
            "lies far below it, all its exponentials are 0, and 0 / 0 follows. Take the maximum "
            "over the parts, for each query.",
            lambda outputs, lses: _weighted(outputs, lses, _one_maximum),
        ),
        Mistake(
            "two parts alone",
            "The first two parts are merged, the others are lost.",
            lambda outputs, lses: _weighted(outputs[:2], lses[:2], partial(softmax, axis=0)),
        ),
        Mistake(
            "the first query's shares for all",
            "Each query has log-sum-exps of its own, so each has shares of its own.",
            lambda outputs, lses: _weighted(outputs, lses, _of_the_first_query),
        ),
        Mistake(
            "shared out, and averaged",
            "The shares add up to 1: the weighted outputs are added, not averaged.",
            lambda outputs, lses: _weighted(outputs, lses, partial(softmax, axis=0)) / len(outputs),
        ),
    ),
    hints=(
        "How much of the sum of exponentials over all keys belongs to each part?",
        "exp(lse) is the sum of a part. Its share is exp(lse) divided by the sum over the parts.",
        "These shares, (parts, queries), are the softmax over the parts: e = np.exp(lses - "
        "lses.max(axis=0)), divided by e.sum(axis=0). Give them an axis for the width.",
    ),
)

# ---------------------------------------------------------------------------- sum_of_parts

# ranks, positions, width of the heads of a rank, width of the output
CUTS = {
    "one rank": (1, 1, 1, 1), "two ranks": (2, 1, 1, 2), "a width of 2": (2, 1, 2, 1),
    "two positions": (2, 2, 1, 2), "all sizes equal": (2, 2, 2, 2), "three ranks": (3, 2, 2, 6),
    "a square matrix": (3, 3, 1, 3), "all sizes different": (3, 4, 2, 5),
}  # fmt: skip


def _parts_cases():
    rng = np.random.default_rng(52)
    for label, (ranks, length, width, out) in CUTS.items():
        shapes = (ranks, length, width), (out, ranks * width), (out,)
        yield Case(label, *(rng.normal(size=shape).round(1) for shape in shapes))
    shapes = (2, 3, 2), (4, 4), (4,)
    yield Case("float32", *(rng.normal(size=s).astype(np.float32) for s in shapes))


def _products(heads, weight, turned=False):
    """What each rank computes: its heads times its columns, (ranks, positions, out)."""
    ranks, _, width = heads.shape
    columns = weight.reshape(len(weight), ranks, width)
    if turned:
        columns = weight.reshape(len(weight), width, ranks).swapaxes(1, 2)
    return np.einsum("rlw,orw->rlo", heads, columns)


sum_of_parts = WriteFunction(
    level=2,
    trains="the sum that ends split heads",
    reference=lambda heads, weight, bias: _products(heads, weight).sum(axis=0) + bias,
    cases=tuple(_parts_cases()),
    mistakes=(
        Mistake(
            "the bias on every rank",
            "Each rank adds the bias, and the all-reduce adds it up once a rank. It is added once.",
            lambda heads, w, b: _products(heads, w).sum(axis=0) + len(heads) * b,
        ),
        Mistake(
            "no all-reduce",
            "That is what one rank has. The outputs of all ranks are added up.",
            lambda heads, w, b: _products(heads, w)[0] + b,
            lambda heads, w, b: _products(heads, w)[-1] + b,
        ),
        Mistake(
            "parts left apart",
            "Every rank's output is there, and they are not added up.",
            lambda heads, w, b: _products(heads, w) + b,
            lambda heads, w, b: _products(heads, w),
        ),
        Mistake(
            "averaged",
            "The output projection sums over all heads: the parts are added, not averaged.",
            lambda heads, w, b: _products(heads, w).mean(axis=0) + b,
        ),
        Mistake(
            "no bias",
            "The bias is missing.",
            lambda heads, w, b: _products(heads, w).sum(axis=0),
        ),
        Mistake(
            "columns dealt out in turn",
            "A rank owns neighbouring columns: rank 0 the first ones, not every second or third.",
            lambda heads, w, b: _products(heads, w, turned=True).sum(axis=0) + b,
        ),
        Mistake(
            "the first columns for every rank",
            "All ranks use the columns of rank 0. Each has its own.",
            lambda heads, w, b: heads.sum(axis=0) @ w[:, : heads.shape[2]].T + b,
        ),
        Mistake(
            "ranks in reverse",
            "Rank 0 owns the first columns.",
            lambda heads, w, b: _products(heads[::-1], w).sum(axis=0) + b,
        ),
        Mistake(
            "heads not side by side",
            "A reshape of (ranks, L, w) to (L, ranks * w) mixes positions and ranks. Move the axis "
            "of the ranks first, behind that of the positions.",
            lambda heads, w, b: heads.reshape(heads.shape[1], -1) @ w.T + b,
        ),
        Mistake(
            "the matrix cut along its rows",
            "A reshape of the matrix to (ranks, embed, w) cuts through its rows. Rank r owns "
            "columns: the last axis is cut.",
            lambda heads, w, b: (
                np.einsum("rlw,row->lo", heads, w.reshape(len(heads), len(w), heads.shape[2])) + b
            ),
        ),
        Mistake(
            "a part of the bias",
            "The bias is divided by the number of ranks, and then added once. Each rank may add "
            "its part before the sum, or one the whole.",
            lambda heads, w, b: _products(heads, w).sum(axis=0) + b / len(heads),
        ),
        Mistake(
            "two ranks alone",
            "The first two ranks are added, the others are lost.",
            lambda heads, w, b: _products(heads, w)[:2].sum(axis=0) + b,
        ),
        Mistake(
            "the last rank is lost",
            "All ranks are added but the last.",
            lambda heads, w, b: _products(heads, w)[:-1].sum(axis=0) + b,
        ),
        Mistake(
            "the average of bias and parts",
            "The sum over the ranks is right until it is divided by their number.",
            lambda heads, w, b: (_products(heads, w).sum(axis=0) + b) / len(heads),
        ),
    ),
    hints=(
        "Which columns of the matrix meet the numbers of rank r?",
        "Rank r has columns r * w to (r + 1) * w - 1, and computes heads[r] @ columns.T.",
        "Add these over the ranks, and the bias once.",
    ),
)

# ---------------------------------------------------------------------------- rank_output

# ranks, positions of a slice, width, width of the values
SLICES = {
    "one rank": (1, 1, 1, 1), "two slices of one": (2, 1, 1, 1), "slices of two": (2, 2, 1, 2),
    "three ranks": (3, 1, 2, 1), "all sizes equal": (2, 2, 2, 2),
    "three slices of two": (3, 2, 2, 3),
    "all sizes different": (4, 3, 2, 5),
}  # fmt: skip


def _rank_cases():
    rng = np.random.default_rng(53)

    def arrays(ranks, n, d, v):
        shapes = (n, d), (ranks, n, d), (ranks, n, v)
        return [rng.normal(size=shape).round(1) for shape in shapes]

    for label, sizes in SLICES.items():
        for rank in sorted({0, min(1, sizes[0] - 1), sizes[0] - 1}):
            yield Case(f"{label}: rank {rank}", *arrays(*sizes), rank)
    query, keys, values = arrays(3, 2, 2, 2)
    yield Case("float32", *(np.float32(x) for x in (query, keys, values)), 1)
    yield Case("large scores (overflow)", 40 * query, 40 * keys, values, 1, extreme=True)
    one, two = np.ones((1, 1)), np.array([[[1.0]], [[2.0]]])
    far = np.array([[[0.0]], [[900.0]]])
    yield Case("a hidden key with a large score", one, far, two, 0, extreme=True)
    yield Case("very small scores", one, far - 5000, two, 0, extreme=True)


def _causal(query, keys, values, rank, first=None, see=np.less_equal, scale=None, weigh=None):
    """Attention of a rank's queries over all slices; `first` is the place of its first query.

    `weigh(scores, allowed)` gives the weights.
    """
    n, d = query.shape
    first = rank * n if first is None else first(rank, n)
    keys, values = keys.reshape(-1, d), values.reshape(-1, values.shape[-1])
    allowed = see(np.arange(len(keys)), first + np.arange(n)[:, None])
    scores = query @ keys.T * (d**-0.5 if scale is None else scale)
    return (weigh or _filled(-np.inf))(scores, allowed) @ values


def _filled(number):
    """A softmax with the number in place of the hidden scores."""
    return lambda scores, allowed: softmax(np.where(allowed, scores, number))


def _minus(top):
    """A softmax that subtracts `top(scores)`, and hides scores only then."""

    def weigh(scores, allowed):
        e = np.exp(scores - top(scores)) * allowed
        return e / e.sum(axis=-1, keepdims=True)

    return weigh


def _nan_for_no_key(scores, allowed):
    scores = np.where(allowed, scores, -np.inf)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _ring_order(query, keys, values, rank):
    order = (rank - np.arange(len(keys))) % len(keys)
    return _causal(query, keys[order], values[order], rank)


def _by_root(size):
    """The scores divided by the root of another size than d."""

    def function(query, keys, values, rank):
        return _causal(query, keys, values, rank, scale=size(query, values) ** -0.5)

    return function


def _by_slices(join):
    """The parts of the slices up to the own one, joined by `join(outputs, lses)`."""

    def function(query, keys, values, rank):
        n, d = query.shape
        outputs, lses = [], []
        for owner in range(rank + 1):
            scores = query @ keys[owner].T * d**-0.5
            if owner == rank:
                scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
            top = scores.max(axis=-1, keepdims=True)
            outputs.append(softmax(scores) @ values[owner])
            lses.append((np.log(np.exp(scores - top).sum(-1, keepdims=True)) + top)[:, 0])
        return join(np.array(outputs), np.array(lses))

    return function


def _always(keys, queries):
    return np.ones(np.broadcast_shapes(np.shape(keys), np.shape(queries)), dtype=bool)


def _unstable(scores, allowed):
    e = np.exp(np.where(allowed, scores, -np.inf))
    return e / e.sum(axis=-1, keepdims=True)


def _own_slice(query, keys, values, rank):
    return _causal(query, keys[rank, None], values[rank, None], 0)


def _own_slice_in_full(query, keys, values, rank):
    return _causal(query, keys, values, rank, see=lambda j, i: j <= i.max())


def _earlier_slices_by_triangle(query, keys, values, rank):
    n = len(query)
    return _causal(query, keys, values, rank,
                   see=lambda j, i: (j // n <= rank) & (j % n <= i % n))  # fmt: skip


rank_output = WriteFunction(
    level=3,
    trains="masks with offsets on a slice",
    reference=lambda query, keys, values, rank: _causal(query, keys, values, rank),
    cases=tuple(_rank_cases()),
    mistakes=(
        Mistake(
            "mask offset of rank 0",
            "Each rank masks as if its slice were the first. Query i of rank r stands at position "
            "r * n + i of the sequence.",
            partial(_causal, first=lambda rank, n: 0),
        ),
        Mistake(
            "offset in ranks, not in positions",
            "The first query of rank r stands at position r * n, not at position r.",
            partial(_causal, first=lambda rank, n: rank),
        ),
        Mistake(
            "offset of the rank before",
            "The rank's own slice is hidden: the offset is one slice too small.",
            partial(_causal, first=lambda rank, n: max(rank - 1, 0) * n),
        ),
        Mistake(
            "offset of the rank behind",
            "The rank sees the slice behind its own one: the offset is one slice too large.",
            partial(_causal, first=lambda rank, n: (rank + 1) * n),
        ),
        Mistake(
            "the own slice in full",
            "Within its own slice a query sees the keys up to its own position only.",
            _own_slice_in_full,
        ),
        Mistake(
            "a triangle in every slice",
            "The triangle belongs to the own slice. Earlier slices are seen in full, and later "
            "ones not at all.",
            _earlier_slices_by_triangle,
            lambda query, keys, values, rank: _causal(
                query, keys, values, 0, see=lambda j, i: j % len(query) <= i
            ),
        ),
        Mistake(
            "own slice alone",
            "The keys of earlier slices are left out: they come around the ring.",
            _own_slice,
        ),
        Mistake(
            "no mask",
            "All slices are seen in full, the later ones too.",
            partial(_causal, see=_always),
        ),
        Mistake(
            "slices averaged",
            "The slices are averaged. They are merged by their log-sum-exps.",
            _by_slices(lambda outputs, lses: outputs.mean(axis=0)),
        ),
        Mistake(
            "slices added",
            "The slices are added without rescaling. Each is an average: merge them by their "
            "log-sum-exps.",
            _by_slices(lambda outputs, lses: outputs.sum(axis=0)),
        ),
        Mistake(
            "not scaled",
            "The scores are divided by the root of the width.",
            partial(_causal, scale=1.0),
        ),
        Mistake(
            "exponentials overflow",
            "exp of a large score is infinite. Subtract the largest score of a query first.",
            partial(_causal, weigh=_unstable),
            partial(_causal, weigh=_minus(np.zeros_like)),
        ),
        Mistake(
            "the triangle turned",
            "Each query sees its own position and those behind it. It should see those before it.",
            partial(_causal, see=np.greater_equal),
        ),
        Mistake(
            "keys in the order of the ring",
            "The keys are taken as they arrive, from rank r, r - 1 and so on, and masked as if "
            "they were in the order of the sequence.",
            _ring_order,
        ),
        Mistake(
            "one position too many",
            "Each query sees the key behind its own position as well. It stands at r * n + i.",
            partial(_causal, first=lambda rank, n: rank * n + 1),
        ),
        Mistake(
            "the own position hidden",
            "Each query sees the keys before it alone. It sees its own, too: <= in place of <.",
            partial(_causal, see=np.less, weigh=_nan_for_no_key),
            partial(_causal, see=np.less),
        ),
        Mistake(
            "masked after the softmax",
            "The hidden keys are weighed, and then left out: the weights that are left do not add "
            "up to 1. Mask the scores.",
            partial(_causal, weigh=lambda scores, allowed: softmax(scores) * allowed),
        ),
        Mistake(
            "0 in place of minus infinity",
            "A hidden score of 0 still gets weight: exp(0) is 1.",
            partial(_causal, weigh=_filled(0)),
        ),
        Mistake(
            "a large number in place of minus infinity",
            "Where the allowed scores lie below the number that stands for a hidden one, the "
            "hidden keys get the weight.",
            partial(_causal, weigh=_filled(-1e3)),
        ),
        Mistake(
            "hidden scores in the maximum",
            "The largest score that is subtracted may be a hidden one. Then all exponentials that "
            "are left can be 0, and 0 / 0 follows. Mask first.",
            partial(_causal, weigh=_minus(lambda scores: scores.max(axis=-1, keepdims=True))),
            partial(_causal, weigh=_minus(np.max)),
        ),
        Mistake(
            "the root of another size",
            "The scores are divided by the root of d, the width of queries and keys.",
            _by_root(lambda query, values: len(query)),
            _by_root(lambda query, values: values.shape[-1]),
            _by_root(lambda query, values: query.shape[-1] ** 2),
        ),
    ),
    hints=(
        "At which positions of the sequence do the queries of rank r stand?",
        "At r * n + i. Slice o holds the keys at o * n + j.",
        "keys.reshape(-1, d) has all keys in order; allowed is np.arange(len(keys)) <= the "
        "positions of the queries.",
    ),
)

# ---------------------------------------------------------------------------- ring_test


SIZES = (7, 1), (7, 2), (7, 3), (7, 4)


def _full(query, key, value):
    return softmax(query @ key.T / query.shape[-1] ** 0.5) @ value


def _ring(query, key, value, ranks, join=None, seen=None, scale=None, keep_order=True):
    """Slice by slice: the queries of a rank meet the slices in the order of the ring."""
    d = query.shape[-1]
    scale = d**-0.5 if scale is None else scale
    slices = list(zip(np.array_split(key, ranks), np.array_split(value, ranks), strict=True))
    result = []
    for rank, of_rank in enumerate(np.array_split(query, ranks)):
        outputs, lses = [], []
        for step in range(ranks if seen is None else seen(ranks)):
            keys, values = slices[(rank - step) % ranks]
            if len(keys):
                scores = of_rank @ keys.T * scale
                top = scores.max(axis=-1, keepdims=True)
                outputs.append(softmax(scores) @ values)
                lses.append((np.log(np.exp(scores - top).sum(-1, keepdims=True)) + top)[:, 0])
        join_parts = join or (lambda o, x: _weighted(o, x, partial(softmax, axis=0)))
        result.append(join_parts(np.array(outputs), np.array(lses)))
    return np.concatenate(result)


def _own_places_lost(query, key, value, ranks):
    """Every rank takes the slices as they lie, and leaves out what does not fill a slice."""
    n = len(key) // ranks
    return _full(query, key[: n * ranks], value[: n * ranks])


def _in_another_order(query, key, value, ranks):
    """The outputs of the ranks, joined from rank 1 on."""
    parts = np.array_split(_full(query, key, value), ranks)
    return np.concatenate([*parts[1:], parts[0]])


def _last_row_own_value(query, key, value, ranks):
    return np.concatenate([_full(query, key, value)[:-1], value[-1:]])


def _last_column_own_values(query, key, value, ranks):
    return np.concatenate([_full(query, key, value)[:, :-1], value[:, -1:]], axis=1)


def _all(result):
    return result


def _against_full(sizes, shape_only=False, constant=False, look=_all, atol=1e-8):
    def test(ring):
        for length, ranks in sizes:
            rng = np.random.default_rng(0)
            query, key, value = rng.normal(size=(3, length, 4))
            if constant:
                key = np.zeros_like(key)
            result = ring(query, key, value, ranks)
            assert result.shape == query.shape
            if not shape_only:
                expected = _full(query, key, value)
                np.testing.assert_allclose(look(result), look(expected), rtol=1e-7, atol=atol)

    return test


def _rows_in_range(ring):
    query, key, value = np.random.default_rng(0).normal(size=(3, 7, 4))
    result = ring(query, key, value, 3)
    assert (result <= value.max(axis=0) + 1e-9).all()
    assert (result >= value.min(axis=0) - 1e-9).all()


ring_test = CatchFaults(
    level=3,
    trains="a test that several ranks must pass",
    right={
        "all at once": lambda query, key, value, ranks: _full(query, key, value),
        "a ring": lambda query, key, value, ranks: _ring(query, key, value, ranks),
        "in float32, nearly": lambda query, key, value, ranks: (
            _full(query, key, value) * (1 + 1e-12)
        ),
    },
    faults=(
        Mistake(
            "averages the parts",
            "All parts count the same.",
            partial(_ring, join=lambda o, lses: o.mean(axis=0)),
        ),
        Mistake(
            "adds the parts",
            "Nothing is rescaled.",
            partial(_ring, join=lambda o, lses: o.sum(axis=0)),
        ),
        Mistake(
            "stops one step early",
            "One slice is never seen.",
            partial(_ring, seen=lambda ranks: max(1, ranks - 1)),
        ),
        Mistake(
            "never passes a slice on",
            "Every rank sees its own keys only.",
            partial(_ring, seen=lambda ranks: 1),
        ),
        Mistake(
            "drops what does not fill a slice",
            "Unequal slices are cut to the shortest.",
            _own_places_lost,
        ),
        Mistake(
            "does not scale",
            "The scores are not divided by the root of the width.",
            partial(_ring, scale=1.0),
        ),
        Mistake(
            "wrong with three ranks and more",
            "Two ranks are a special ring.",
            lambda query, key, value, ranks: (
                _ring(query, key, value, min(ranks, 2))
                if ranks < 3
                else _ring(query, key, value, ranks, seen=lambda n: 2)
            ),
        ),
        Mistake(
            "wrong with two ranks",
            "With two ranks the neighbour before is the one behind: try that, too.",
            partial(_ring, seen=lambda ranks: 1 if ranks == 2 else ranks),
        ),
        Mistake(
            "merges three slices at most",
            "With four ranks the last slice is lost: try four.",
            partial(_ring, seen=lambda ranks: min(ranks, 3)),
        ),
        Mistake(
            "the ranks in another order",
            "All rows are there, those of rank 0 at the end.",
            _in_another_order,
        ),
        Mistake(
            "the last row is wrong",
            "All rows are right but the last.",
            _last_row_own_value,
        ),
        Mistake(
            "the last column is wrong",
            "All columns are right but the last.",
            _last_column_own_values,
        ),
        Mistake(
            "one hundredth too much",
            "It differs by 0.01: a tolerance must not be so wide.",
            lambda query, key, value, ranks: _full(query, key, value) + 0.01,
        ),
    ),
    mistakes=(
        Mistake(
            "nothing about the numbers",
            "Nothing is asserted that a wrong number would break. Every fault here returns arrays "
            "of the right shape.",
            _against_full([(8, 2)], shape_only=True),
        ),
        Mistake(
            "the last row is not compared",
            "The last row is not compared, as where a test looks at rank 0 alone. Each rank has "
            "rows of its own.",
            _against_full(SIZES, look=lambda x: x[0]),
            _against_full(SIZES, look=lambda x: x[:2]),
        ),
        Mistake(
            "the last column is not compared",
            "The last column is not compared, as where a test looks at the first alone.",
            _against_full(SIZES, look=lambda x: x[:, 0]),
            _against_full(SIZES, look=lambda x: x[:, :2]),
        ),
        Mistake(
            "one number of all",
            "What it compares does not see an order, as a mean or a sum of all does not.",
            _against_full(SIZES, look=lambda x: x.mean()),
        ),
        Mistake(
            "a wide tolerance",
            "The tolerance is so wide that a wrong result passes.",
            _against_full(SIZES, atol=0.1),
            _against_full(SIZES, atol=0.05),
        ),
        Mistake(
            "neither two nor four ranks",
            "A ring of two and a ring of four are not tried. It can be right for three alone.",
            _against_full([(7, 3)]),
        ),
        Mistake(
            "two ranks are not tried",
            "A ring of two is not tried. It can be right for other numbers, and wrong for two.",
            _against_full([(7, 4)]),
        ),
        Mistake(
            "three ranks at most",
            "A ring of four is not tried.",
            _against_full([(7, 1), (7, 2), (7, 3)]),
            _against_full([(7, 2), (7, 3)]),
        ),
        Mistake(
            "one rank alone",
            "With one rank there is no ring: nothing is merged.",
            _against_full([(7, 1)]),
        ),
        Mistake(
            "two ranks alone",
            "With two ranks each slice is passed on once. Some faults need three or four ranks.",
            _against_full([(8, 2)]),
            _against_full([(6, 2)]),
        ),
        Mistake(
            "slices of one length",
            "All slices are equally long. Take a length that the ranks do not divide.",
            _against_full([(8, 1), (8, 2), (8, 4)]),
            _against_full([(12, 4)]),
            _against_full([(9, 3)]),
        ),
        Mistake(
            "keys that are all alike",
            "With keys of zeros all scores are 0: what is not scaled, or averaged over equal "
            "slices, is right.",
            _against_full([(8, 2), (8, 4)], constant=True),
        ),
        Mistake(
            "averages within the range of the values",
            "A result within the range of the values can be the wrong average of them.",
            _rows_in_range,
        ),
    ),
    hints=(
        "Compare with attention over all keys at once, which needs no ring.",
        "One call is not enough: try a number of ranks that does not divide the length, too.",
        "Ranks 1, 2, 3 and 4, with 7 positions and random numbers.",
    ),
)

EXERCISES = {
    "ring_bytes": ring_bytes,
    "merge_slices": merge_slices,
    "sum_of_parts": sum_of_parts,
    "rank_output": rank_output,
    "ring_test": ring_test,
}
