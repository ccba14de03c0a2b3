"""The exercises of chapter 13, tiling: references, cases, known mistakes, hints."""

from functools import partial

import numpy as np
import torch

from attention_lib.checks.engine import Case, CatchFaults, Mistake, PredictValue, WriteFunction
from attention_lib.lookup import softmax
from attention_lib.masks import window_mask
from attention_lib.single_head import scaled_dot_product_attention

# ---------------------------------------------------------------------------- window_blocks

LENGTH, WINDOW, BLOCK = 1000, 200, 128


def _blocks_with(allowed):
    """How many blocks hold a pair that ``allowed(query, key)`` allows, keys never later."""
    count = range(-(-LENGTH // BLOCK))
    return sum(bool(allowed(i, j)) for i in count for j in count)


def _window_blocks():
    mask = window_mask(LENGTH, left=WINDOW - 1, right=0).split(BLOCK)
    return sum(bool(block.any()) for rows in mask for block in rows.split(BLOCK, dim=1))


window_blocks = PredictValue(
    level=1,
    trains="blocks that a window leaves out",
    answer=_window_blocks,
    mistakes=(
        Mistake(
            "all blocks",
            "That is every block of the table. Most of them lie outside the window.",
            _blocks_with(lambda i, j: True),
        ),
        Mistake(
            "the triangle's blocks",
            "That is what is left above the diagonal's end: the causal mask alone. The window also "
            "leaves out what is too far back.",
            _blocks_with(lambda i, j: j <= i),
        ),
        Mistake(
            "the diagonal alone",
            "A window of 200 is wider than a block, so it reaches into earlier blocks.",
            _blocks_with(lambda i, j: j == i),
        ),
        Mistake(
            "two in a row",
            "200 keys fit into two blocks for some queries only. The first query of a block "
            "reaches 199 keys back, over one whole block and into the one before.",
            _blocks_with(lambda i, j: i - 1 <= j <= i),
            2 * 8,
        ),
        Mistake(
            "three in every row",
            "The first rows of blocks have nothing before them: they need fewer.",
            3 * 8,
        ),
        Mistake(
            "the last block left out",
            "1000 is no multiple of 128. The last 104 queries make a row of blocks, too.",
            _blocks_with(lambda i, j: i - 2 <= j <= i < 7),
        ),
        Mistake(
            "four in a row",
            "The first query of a block reaches 199 keys back. How many whole blocks is that, and "
            "how many does it touch?",
            _blocks_with(lambda i, j: i - 3 <= j <= i),
            4 * 8,
        ),
        Mistake(
            "the window on both sides",
            "No query sees a key that comes after it.",
            _blocks_with(lambda i, j: i - 2 <= j <= i + 2),
            _blocks_with(lambda i, j: i - 2 <= j <= i + 1),
        ),
        Mistake(
            "pairs divided by the size of a block",
            "That is the area of the window in blocks. A block with a single allowed pair is "
            "computed whole.",
            180100 / BLOCK**2,
            11,
            12,
        ),
    ),
    hints=(
        "Draw the table of blocks: 8 rows and 8 columns. The last row and column are smaller.",
        "The first query of row r is 128 r, and its first key is 128 r - 199. In which block is "
        "that?",
        "Row 0 needs 1 block, row 1 needs 2, and from row 2 on it is the same number each.",
    ),
)

# ---------------------------------------------------------------------------- merge_parts


def _merge(first, first_lse, second, second_lse, guard=True, shift=np.maximum, base=np.e):
    top = shift(first_lse, second_lse)
    top = np.where(np.isneginf(top), 0.0, top) if guard else top
    one, two = (np.power(base, lse - top)[..., None] for lse in (first_lse, second_lse))
    total = one + two
    total = np.where(total == 0, 1.0, total) if guard else total
    return one / total * first + two / total * second


def _with_shares(share, axis=True):
    """A merge that gives the first part `share(first_lse, second_lse)` and the second the rest."""

    def merge(first, first_lse, second, second_lse):
        part = share(first_lse, second_lse)
        part = np.nan_to_num(part)[..., None] if axis else np.nan_to_num(part)
        return part * first + (1 - part) * second

    return merge


def _zero_for_nan(merge):
    return lambda *parts: np.nan_to_num(merge(*parts), posinf=0.0, neginf=0.0)


def _over_queries(first, first_lse, second, second_lse):
    one, two = softmax(np.stack([first_lse, second_lse]))
    return one[..., None] * first + two[..., None] * second


def _one_for_all(first, second):
    """The largest of all log-sum-exps, for every query."""
    return np.full(np.shape(first), max(np.max(first), np.max(second)))


def _where_blind(value):
    """Right, but `value(first, second)` for a query that saw nothing in either part."""

    def merge(first, first_lse, second, second_lse):
        blind = np.isneginf(first_lse) & np.isneginf(second_lse)
        right = _merge(first, first_lse, second, second_lse)
        return np.where(blind[..., None], value(first, second), right)

    return merge


def _not_divided(shift):
    def merge(first, first_lse, second, second_lse):
        top = shift(first_lse, second_lse)
        top = np.where(np.isneginf(top), 0.0, top)
        one, two = (np.exp(lse - top)[..., None] for lse in (first_lse, second_lse))
        return one * first + two * second

    return merge


def _nothing(first, second):
    return np.zeros(np.shape(first))


def _sigmoid(x):
    return 0.5 * (1 + np.tanh(x / 2))


def _part_cases():
    rng = np.random.default_rng(31)

    def parts(shape, v, shift=0.0):
        lse = (rng.normal(size=(2, *shape)) * 2 + shift).round(2)
        values = rng.normal(size=(2, *shape, v)).round(2)
        return [values[0], lse[0], values[1], lse[1]]

    yield Case("one query, one number", *parts((1,), 1))
    yield Case("one query", *parts((1,), 3))
    equal = parts((2,), 3)
    equal[3] = equal[1].copy()
    yield Case("equal log-sum-exps", *equal)
    yield Case("two queries", *parts((2,), 3))
    yield Case("as many queries as numbers", *parts((3,), 3))
    first, second, both = parts((3,), 2), parts((3,), 2), parts((4,), 7)
    for given, places in ((first, (1,)), (second, (3,)), (both, (1, 3))):
        for place in places:
            given[place][-1] = -np.inf
    yield Case("a query that saw nothing in the first part", *first)
    yield Case("a query that saw nothing in the second part", *second)
    yield Case("a query that saw nothing at all", *both)
    yield Case("a batch with heads", *parts((2, 3, 4), 5))
    yield Case("float32", *(x.astype(np.float32) for x in parts((4,), 2)))
    far = parts((2,), 3)
    far[1] = far[1] - 1000
    yield Case("the second part far larger", *far, extreme=True)
    yield Case("the first part far larger", *far[2:], *far[:2], extreme=True)
    apart = parts((3,), 2)
    for lse in apart[1::2]:
        lse[0] -= 1000
    yield Case("queries far apart", *apart, extreme=True)
    yield Case("large log-sum-exps", *parts((2,), 4, 1000.0), extreme=True)
    yield Case("very negative log-sum-exps", *parts((2,), 4, -1000.0), extreme=True)


merge_parts = WriteFunction(
    level=2,
    trains="two partial results as one softmax",
    reference=lambda first, first_lse, second, second_lse: _merge(
        first, first_lse, second, second_lse
    ),
    cases=tuple(_part_cases()),
    mistakes=(
        Mistake(
            "the mean of the two",
            "Each part counts as much as its keys' exponentials add up to, and the log-sum-exp "
            "tells how much that is.",
            _with_shares(lambda a, b: 0.5 + 0 * np.nan_to_num(a)),
        ),
        Mistake(
            "the sum of the two",
            "Both parts are averages already. Their shares must add up to 1.",
            lambda first, a, second, b: first + second,
        ),
        Mistake(
            "the larger part alone",
            "The part with the smaller log-sum-exp has a share as well.",
            lambda first, a, second, b: np.where((a >= b)[..., None], first, second),
            lambda first, a, second, b: np.where((a > b)[..., None], first, second),
        ),
        Mistake(
            "shares exchanged",
            "Each part is multiplied by the share of the other.",
            lambda first, a, second, b: _merge(first, b, second, a),
        ),
        Mistake(
            "shares from the logarithms",
            "The log-sum-exp is a logarithm. The shares are those of what it is the logarithm of.",
            lambda first, a, second, b: (
                (a / (a + b))[..., None] * first + (b / (a + b))[..., None] * second
            ),
            _with_shares(lambda a, b: a / (a + b)),
        ),
        Mistake(
            "not divided by the sum",
            "The exponentials are there, relative to the larger one. Their sum is not 1 yet.",
            _not_divided(np.maximum),
        ),
        Mistake(
            "exponentials as shares",
            "exp(lse) is the sum of a part's exponentials. Divide by the sum of both.",
            _not_divided(_nothing),
        ),
        Mistake(
            "no maximum subtracted",
            "It overflows for large log-sum-exps and is 0 / 0 for very negative ones. Subtract the "
            "larger of the two first.",
            partial(_merge, guard=False, shift=_nothing),
            partial(_merge, shift=_nothing),
            _zero_for_nan(partial(_merge, guard=False, shift=_nothing)),
        ),
        Mistake(
            "only one part's log-sum-exp subtracted",
            "The other may be larger by far, and overflows then. Subtract the larger of the two.",
            partial(_merge, shift=lambda a, b: a),
            partial(_merge, shift=lambda a, b: b),
            partial(_merge, shift=np.minimum),
            partial(_merge, shift=np.minimum, guard=False),
        ),
        Mistake(
            "one maximum for all queries",
            "A query whose log-sum-exps lie far below those of another gets 0 / 0. Subtract the "
            "larger of its own two.",
            partial(_merge, shift=_one_for_all),
            partial(_merge, shift=_one_for_all, guard=False),
        ),
        Mistake(
            "not 0 for a query that saw nothing",
            "Where both log-sum-exps are minus infinity, the averages mean nothing. The result "
            "must be 0 there.",
            _where_blind(lambda first, second: first),
            _where_blind(lambda first, second: second),
            _where_blind(lambda first, second: (first + second) / 2),
        ),
        Mistake(
            "one part alone",
            "The other part saw keys as well. Both have a share.",
            lambda first, a, second, b: first + 0,
            lambda first, a, second, b: second + 0,
        ),
        Mistake(
            "a softmax over the queries",
            "The shares of the two parts of a query must add up to 1. Here those of all queries "
            "of a part do.",
            _over_queries,
            lambda *parts: np.nan_to_num(_over_queries(*parts)),
        ),
        Mistake(
            "NaN for a query that saw nothing",
            "Where both log-sum-exps are minus infinity, their difference is NaN. The result must "
            "be 0 there.",
            partial(_merge, guard=False),
        ),
        Mistake(
            "powers of 2",
            "The log-sum-exp here is a natural logarithm.",
            partial(_merge, base=2.0),
        ),
        Mistake(
            "shares along the width",
            "A share belongs to a query. Without an axis behind it, it lines up with the numbers "
            "of the output, or with nothing.",
            _with_shares(lambda a, b: _sigmoid(a - b), axis=False),
        ),
        Mistake(
            "one share for all queries",
            "Every query has its own two log-sum-exps.",
            _with_shares(
                lambda a, b: np.broadcast_to(_sigmoid(np.mean(a) - np.mean(b)), np.shape(a))
            ),
        ),
        Mistake(
            "the share of the first part for both",
            "The second part has the rest, 1 minus the share of the first.",
            lambda first, a, second, b: _merge(first + second, a, 0 * second, b),
        ),
    ),
    hints=(
        "exp(lse) is the sum of exponentials by which a part was divided. Multiply by it, add, and "
        "divide by the sum of both.",
        "Subtract the larger lse from both before the exponential, and replace it by 0 where it is "
        "minus infinity.",
        "one = np.exp(first_lse - top), two = np.exp(second_lse - top), and the result is (one * "
        "first + two * second) / (one + two), with [..., None] behind one and two, and with 1 for "
        "a sum of 0.",
    ),
)

# ---------------------------------------------------------------------------- tiled_fault


def _slices(length, block):
    return [slice(i, min(i + block, length)) for i in range(0, length, block)]


def _triangle(rows, columns):
    """What the queries of a block may see of the keys of another."""
    i, j = np.arange(rows.start, rows.stop), np.arange(columns.start, columns.stop)
    return j <= i[:, None]


def _local(rows, columns, offset=0):
    """A triangle that starts in the corner of the block."""
    size = rows.stop - rows.start, columns.stop - columns.start
    return np.tril(np.ones(size, dtype=bool), offset)


def _all(rows, columns):
    return np.ones((rows.stop - rows.start, columns.stop - columns.start), dtype=bool)


def _tiled(
    query, key, value, block, seen=_triangle, scale=None, start=-np.inf, sums_too=True,
    total_too=True, cut=_slices, cut_queries=None,
):  # fmt: skip
    """Attention by blocks; ``seen(rows, columns)`` says which pairs of a block are allowed."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output = np.zeros((len(query), value.shape[-1]), np.result_type(query, value))
    for rows in (cut_queries or cut)(len(query), block):
        count = rows.stop - rows.start
        largest, total = np.full((count, 1), start), np.zeros((count, 1))
        sums = np.zeros((count, value.shape[-1]))
        for columns in cut(len(key), block):
            allowed = seen(rows, columns)
            if not allowed.any():
                continue
            scores = np.where(allowed, query[rows] @ key[columns].T * scale, -np.inf)
            new = np.maximum(largest, scores.max(axis=1, keepdims=True))
            weights, correction = np.exp(scores - new), np.exp(largest - new)
            total = total * (correction if total_too else 1) + weights.sum(axis=1, keepdims=True)
            sums = sums * (correction if sums_too else 1) + weights @ value[columns]
            largest = new
        output[rows] = sums / total
    return output


def _same_loop(offset=lambda i, j, block: i - j, first=lambda i, block: 0, last=None):
    """The loop of the task with another offset of the triangle, or other blocks of keys."""

    def tiled(query, key, value, block):
        output = np.zeros((len(query), value.shape[-1]))
        for i in range(0, len(query), block):
            rows = slice(i, i + block)
            largest, total, sums = -np.inf, 0.0, 0.0
            for j in range(first(i, block), i + 1 if last is None else last(i, block), block):
                columns = slice(j, j + block)
                scores = query[rows] @ key[columns].T / np.sqrt(key.shape[1])
                seen = np.tril(np.ones(scores.shape, dtype=bool), offset(i, j, block))
                scores = np.where(seen, scores, -np.inf)
                new = np.maximum(largest, scores.max(axis=1, keepdims=True))
                weights, correction = np.exp(scores - new), np.exp(largest - new)
                total = total * correction + weights.sum(axis=1, keepdims=True)
                sums = sums * correction + weights @ value[columns]
                largest = new
            output[rows] = sums / total
        return output

    return tiled


def _ragged_end_zero(query, key, value, block):
    whole = len(query) // block * block or len(query)
    output = np.zeros((len(query), value.shape[-1]))
    output[:whole] = _tiled(query[:whole], key[:whole], value[:whole], block)
    return output


def _separate(join):
    """A softmax for each block, joined by ``join`` of a list of outputs ``(L, v)``."""

    def tiled(query, key, value, block):
        output = np.zeros((len(query), value.shape[-1]))
        for rows in _slices(len(query), block):
            parts = []
            for columns in _slices(rows.stop, block):
                allowed = _triangle(rows, columns)
                scores = query[rows] @ key[columns].T / np.sqrt(query.shape[-1])
                parts.append(softmax(np.where(allowed, scores, -np.inf)) @ value[columns])
            output[rows] = join(parts)
        return output

    return tiled


def _whole_blocks(length, block):
    return [slice(i, i + block) for i in range(0, length - block + 1, block)]


def _dead_rows_zero(query, key, value, block):
    """Own position hidden, with 0 in place of NaN for the first query."""
    seen = lambda r, c: _triangle(r, c) & ~np.eye(len(key), dtype=bool)[r, c]  # noqa: E731
    output = np.zeros((len(query), value.shape[-1]))
    output[1:] = _tiled(query, key, value, len(key), seen)[1:]
    return output


def _tiled_cases():
    rng = np.random.default_rng(32)

    def inputs(length, d, v, factor=1.0):
        q, k, v = (rng.normal(size=(length, n)).round(2) for n in (d, d, v))
        return factor * q, k, v

    yield Case("one query", *inputs(1, 2, 3), 2)
    yield Case("one block that is not full", *inputs(3, 2, 2), 4)
    yield Case("two whole blocks", *inputs(4, 3, 2), 2)
    yield Case("blocks of one", *inputs(4, 2, 3), 1)
    yield Case("two blocks, the last not full", *inputs(5, 3, 2), 3)
    yield Case("three whole blocks", *inputs(6, 2, 3), 2)
    yield Case("four blocks, the last of one", *inputs(7, 3, 4), 2)
    yield Case("larger scores", *inputs(8, 4, 3, 4.0), 3)
    yield Case("float32", *(x.astype(np.float32) for x in inputs(5, 4, 3)), 2)
    q, k, v = inputs(5, 2, 3)
    yield Case("very negative scores", 30 + abs(q), -50 - abs(k), v, 2, extreme=True)
    yield Case("large scores", 30 + abs(q), 50 + abs(k), v, 2, extreme=True)


tiled_fault = WriteFunction(
    level=2,
    trains="rescaling, ragged ends and offsets",
    reference=lambda query, key, value, block: _tiled(query, key, value, block),
    cases=tuple(_tiled_cases()),
    mistakes=(
        Mistake(
            "the fault is still there: one triangle for all blocks",
            "The triangle starts in the corner of each block. Only blocks on the diagonal are cut "
            "by it; a block before the diagonal is seen whole.",
            partial(_tiled, seen=lambda r, c: _local(r, c) & (c.start <= r.start)),
            partial(_tiled, seen=_local),
        ),
        Mistake(
            "the triangle left out",
            "Every query sees all keys here, those after it as well.",
            partial(_tiled, seen=_all),
        ),
        Mistake(
            "the diagonal's blocks seen whole",
            "A block on the diagonal holds keys that come after some of its queries.",
            partial(_tiled, seen=lambda r, c: _all(r, c) & (c.start <= r.start)),
        ),
        Mistake(
            "the diagonal's blocks alone",
            "The blocks before the diagonal are skipped. They are the ones that are seen whole.",
            partial(_tiled, seen=lambda r, c: _triangle(r, c) & (c.start == r.start)),
        ),
        Mistake(
            "offset turned",
            "The triangle of a block moves the wrong way: its offset is the first query's place "
            "minus the first key's.",
            partial(_tiled, seen=lambda r, c: _local(r, c, c.start - r.start)),
            _same_loop(lambda i, j, block: j - i),
        ),
        Mistake(
            "offset counted in blocks",
            "The offset of the triangle is a number of keys, not of blocks.",
            _same_loop(lambda i, j, block: (i - j) // block),
        ),
        Mistake(
            "the offset always 1",
            "The offset depends on the block: 0 on the diagonal, and more the further back the "
            "keys are.",
            _same_loop(lambda i, j, block: 1),
        ),
        Mistake(
            "the offset without the first key",
            "The first query's place alone moves the triangle too far. The block's first key "
            "counts as well.",
            _same_loop(lambda i, j, block: i),
        ),
        Mistake(
            "the first block skipped",
            "Later queries never see the first keys. They see all keys before them.",
            _same_loop(first=lambda i, block: block if i else 0),
        ),
        Mistake(
            "own position hidden",
            "A query sees its own position. Without it, the first one sees nothing.",
            _dead_rows_zero,
        ),
        Mistake(
            "one key of the future",
            "Each query sees one key too many: the one after it.",
            partial(_tiled, seen=lambda r, c: _local(r, c, r.start - c.start + 1)),
        ),
        Mistake(
            "the diagonal one too far",
            "In a block on the diagonal each query sees one key too many: the one after it.",
            _same_loop(lambda i, j, block: i - j + 1),
        ),
        Mistake(
            "the sums not corrected",
            "A new largest score changes the weights of all earlier values: the sum of the values "
            "must be multiplied by the correction as the total is.",
            partial(_tiled, sums_too=False),
        ),
        Mistake(
            "the total not corrected",
            "A new largest score changes all earlier exponentials: the total must be multiplied by "
            "the correction as the sums are.",
            partial(_tiled, total_too=False),
        ),
        Mistake(
            "neither sum corrected",
            "Both sums hold exponentials relative to an older largest score.",
            partial(_tiled, sums_too=False, total_too=False),
        ),
        Mistake(
            "the largest starts at 0",
            "Right as long as some score is not far below 0. Where all are, every exponential is "
            "0, and the result 0 / 0.",
            partial(_tiled, start=0.0),
        ),
        Mistake(
            "the last block left out",
            "The length is no multiple of the block for some inputs: the last block is shorter.",
            partial(_tiled, cut=_whole_blocks),
            _ragged_end_zero,
        ),
        Mistake(
            "the scale left out",
            "The scores must be divided by the root of the width of a query.",
            partial(_tiled, scale=1.0),
        ),
        Mistake(
            "a softmax for each block",
            "Each block is divided by its own total. There is one total for a query, over all "
            "blocks.",
            _separate(sum),
            _separate(lambda parts: sum(parts) / len(parts)),
        ),
    ),
    hints=(
        "Which pairs does the code allow in the block of queries 2 and 3 with keys 0 and 1?",
        "np.tril(…, k) moves the diagonal by k to the right. In the block on the diagonal k is 0, "
        "and it grows with the distance of the first query from the first key.",
        "k is i - j, for the first query i and the first key j of the block.",
    ),
)

# ---------------------------------------------------------------------------- scores_gradient


def _weights(scores, lse):
    lse = np.where(np.isneginf(lse), 0.0, lse)
    return np.exp(scores - lse[:, None])


def _shared(output, grad):
    return (grad * output).sum(axis=1, keepdims=True)


def _gradient(scores, value, output, lse, grad, weights=_weights, shared=_shared):
    return weights(scores, lse) * (grad @ value.T - shared(output, grad))


def _of_block(scores, lse):
    """The softmax over this block alone; 0 where it holds no key that is seen."""
    top = scores.max(axis=1, keepdims=True)
    e = np.exp(scores - np.where(np.isneginf(top), 0.0, top))
    total = e.sum(axis=1, keepdims=True)
    return e / np.where(total == 0, 1.0, total)


def _of_block_nan(scores, lse):
    """The same, with NaN where the block holds no key that is seen."""
    total = np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return np.exp(scores - total)


def _divided(scores, lse):
    return np.exp(scores) / np.exp(np.where(np.isneginf(lse), 0.0, lse))[:, None]


def _block_shared(weights):
    """The shared part from what this block holds of it."""

    def gradient(scores, value, output, lse, grad):
        w, g = weights(scores, lse), grad @ value.T
        return w * (g - (w * g).sum(axis=1, keepdims=True))

    return gradient


def _gradient_cases():
    rng = np.random.default_rng(33)

    def inputs(length, keys, block, v, shift=0.0, hidden=None):
        """A block out of more keys, with the output and log-sum-exp over all of them."""
        scores = (rng.normal(size=(length, keys)) * 2 + shift).round(2)
        if hidden is not None:
            scores[hidden] = -np.inf
        value, grad = (rng.normal(size=(n, v)).round(2) for n in (keys, length))
        top = scores.max(axis=1)
        top = np.where(np.isneginf(top), 0.0, top)
        total = np.exp(scores - top[:, None]).sum(axis=1)
        with np.errstate(divide="ignore"):
            lse = (top + np.log(total)).round(4)
        output = (_weights(scores, lse) @ value).round(4)
        return scores[:, block], value[block], output, lse, grad

    yield Case("one query, one of two keys", *inputs(1, 2, slice(0, 1), 1))
    yield Case("one query, all of three keys", *inputs(1, 3, slice(0, 3), 2))
    yield Case("the first of two blocks", *inputs(2, 5, slice(0, 3), 4))
    yield Case("the last of two blocks", *inputs(3, 5, slice(3, 5), 2))
    yield Case("as many queries as keys", *inputs(3, 6, slice(2, 5), 3))
    yield Case("hidden keys", *inputs(3, 5, slice(1, 4), 2, hidden=([0, 1, 1], [1, 1, 2])))
    yield Case("a query that sees nothing", *inputs(3, 7, slice(0, 5), 6, hidden=(1,)))
    block = inputs(3, 5, slice(1, 4), 4)
    yield Case("float32", *(x.astype(np.float32) for x in block))
    yield Case("large scores", *inputs(2, 5, slice(0, 3), 3, shift=1000.0), extreme=True)


scores_gradient = WriteFunction(
    level=3,
    trains="a backward pass from the log-sum-exp",
    reference=lambda scores, value, output, lse, grad_output: _gradient(
        scores, value, output, lse, grad_output
    ),
    cases=tuple(_gradient_cases()),
    mistakes=(
        Mistake(
            "the shared part left out",
            "A score that grows takes weight from all other keys. That is the part that is "
            "subtracted.",
            partial(_gradient, shared=lambda o, g: 0.0),
        ),
        Mistake(
            "the shared part added",
            "It is subtracted: the gradients of a query's scores add up to 0 over all keys.",
            partial(_gradient, shared=lambda o, g: -_shared(o, g)),
        ),
        Mistake(
            "the sign turned",
            "The shared part is subtracted from the gradient of the weights, not the other way "
            "round.",
            lambda *inputs: -_gradient(*inputs),
        ),
        Mistake(
            "the shared part outside the product",
            "The weights multiply the difference, so the shared part as well.",
            lambda s, value, o, lse, grad: _weights(s, lse) * (grad @ value.T) - _shared(o, grad),
        ),
        Mistake(
            "the effect on its own weight alone",
            "w (1 - w) is how a weight changes with its own score. A score changes the weights of "
            "all other keys, too.",
            lambda s, value, o, lse, grad: (
                _weights(s, lse) * (1 - _weights(s, lse)) * (grad @ value.T)
            ),
        ),
        Mistake(
            "divided by the root of a width",
            "The scores are given: how they were made out of queries and keys plays no part in "
            "the gradient by them.",
            lambda s, value, o, lse, grad: (
                _gradient(s, value, o, lse, grad) / np.sqrt(value.shape[1])
            ),
        ),
        Mistake(
            "the log-sum-exp added",
            "The exponentials are divided by exp(lse), so lse is subtracted in the exponent.",
            partial(
                _gradient,
                weights=lambda s, lse: np.exp(s + np.where(np.isneginf(lse), 0.0, lse)[:, None]),
            ),
        ),
        Mistake(
            "two exponentials divided",
            "Both overflow for large scores. Subtract the log-sum-exp before the exponential.",
            partial(_gradient, weights=_divided),
            partial(_gradient, weights=lambda s, lse: np.exp(s) / np.exp(lse)[:, None]),
        ),
        Mistake(
            "the shared part from this block alone",
            "The sum runs over all keys of the query, and this block holds only some. The output "
            "knows the whole sum.",
            _block_shared(_weights),
        ),
        Mistake(
            "the softmax of the block",
            "The weights are those among all keys. The log-sum-exp stands for the sum of all "
            "exponentials, the block's own sum does not.",
            partial(_gradient, weights=_of_block),
            partial(_gradient, weights=_of_block_nan),
        ),
        Mistake(
            "everything from the block",
            "Weights and shared part come from this block alone. Both need what lies outside: the "
            "log-sum-exp and the output.",
            _block_shared(_of_block),
        ),
        Mistake(
            "exponentials not divided",
            "The log-sum-exp is the logarithm of what the exponentials are divided by. Subtract it "
            "from the scores.",
            partial(_gradient, weights=lambda s, lse: np.exp(s)),
        ),
        Mistake(
            "divided by the logarithm",
            "The log-sum-exp is a logarithm: it is subtracted inside the exponential.",
            partial(_gradient, weights=lambda s, lse: np.exp(s) / lse[:, None]),
        ),
        Mistake(
            "the weights left out",
            "That is how the loss changes with a weight, moved to sum 0. A score moves the weights "
            "in proportion to its own.",
            partial(_gradient, weights=lambda s, lse: 1.0),
        ),
        Mistake(
            "the gradient of the weights",
            "That is one step before: the gradient of the weights, not of the scores.",
            lambda s, value, o, lse, grad: grad @ value.T,
        ),
        Mistake(
            "the gradient of the values",
            "That is the weights, transposed, times the gradient of the output. Asked for is the "
            "gradient of the scores, (L, n).",
            lambda s, value, o, lse, grad: _weights(s, lse).T @ grad,
        ),
        Mistake(
            "the shared part summed over the queries",
            "Each query has a shared part of its own: sum over the width, the last axis.",
            partial(_gradient, shared=lambda o, g: (g * o).sum(axis=0, keepdims=True)),
            partial(_gradient, shared=lambda o, g: (g * o).sum()),
        ),
        Mistake(
            "the mean in place of the sum",
            "The products of gradient and output are summed over the width, not averaged.",
            partial(_gradient, shared=lambda o, g: (g * o).mean(axis=1, keepdims=True)),
        ),
        Mistake(
            "the output without the gradient",
            "The shared part is the sum of the gradient of the output times the output.",
            partial(_gradient, shared=lambda o, g: o.sum(axis=1, keepdims=True)),
            partial(_gradient, shared=lambda o, g: (o * o).sum(axis=1, keepdims=True)),
            partial(_gradient, shared=lambda o, g: g.sum(axis=1, keepdims=True)),
        ),
        Mistake(
            "NaN for a query that sees nothing",
            "Its scores and its log-sum-exp are minus infinity, and their difference is NaN. Its "
            "gradients must be 0.",
            partial(_gradient, weights=lambda s, lse: np.exp(s - lse[:, None])),
        ),
    ),
    hints=(
        "First the weights of the block: the exponential of scores minus lse, with an axis behind "
        "lse, and 0 in place of an lse of minus infinity.",
        "Then the gradient of the weights, grad_output @ value.T, and the shared part of each "
        "query, the sum of grad_output * output over the last axis.",
        "The gradient is weights * (gradient of the weights - shared part).",
    ),
)

# ---------------------------------------------------------------------------- tiled_test


def _formula(query, key, value, block):
    return softmax(query @ key.T / np.sqrt(query.shape[-1])) @ value


def _by_torch(query, key, value, block):
    inputs = (torch.tensor(np.asarray(x, dtype=float)) for x in (query, key, value))
    return scaled_dot_product_attention(*inputs).numpy()


def _filled_up(query, key, value, block):
    """The last block filled up with keys of zeros, and values of zeros."""
    more = -len(key) % block
    key, value = (np.concatenate([x, np.zeros((more, x.shape[1]))]) for x in (key, value))
    return _full(query, key, value, block)


def _moved_back(length, block):
    """The last block moved back so that it is full, with some places twice."""
    starts = [min(i, max(length - block, 0)) for i in range(0, length, block)]
    return [slice(i, min(i + block, length)) for i in starts]


def _as_long_as(which):
    """Takes the length of the query for that of the key, or the other way round."""

    def tiled(query, key, value, block):
        if which == "query":
            return _full(query, key[: len(query)], value[: len(query)], block)
        output = np.zeros((len(query), value.shape[-1]))
        output[: len(key)] = _full(query[: len(key)], key, value, block)
        return output

    return tiled


_full = partial(_tiled, seen=_all)


def _draw(length, keys, d=4, v=3):
    rng = np.random.default_rng(5)
    return [rng.normal(size=size) * 2 for size in ((length, d), (keys, d), (keys, v))]


def _sizes(*sizes, change=lambda *x: x, look=lambda x: x, agree=np.allclose, v=3):
    """A test that compares with the formula at these sizes: queries, keys, block."""

    def test(tiled):
        for length, keys, block in sizes:
            inputs = change(*_draw(length, keys, v=v))
            mine, right = tiled(*inputs, block), _formula(*inputs, block)
            assert np.shape(mine) == np.shape(right)
            assert agree(look(np.asarray(mine)), look(right))

    return test


_GOOD = (5, 7, 3), (7, 5, 3), (4, 3, 8)  # sizes that show every fault


def _weak(*sizes, **options):
    """The same test with values of another width than the queries, and of the same."""
    return [_sizes(*sizes, v=width, **options) for width in (3, 4)]


def _only_last_block(query, key, value, block):
    output = _full(query, key, value, block)
    output[: (len(query) - 1) // block * block] = 0
    return output


def _one_total(query, key, value, block):
    scores = query @ key.T / np.sqrt(query.shape[-1])
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials @ value / exponentials[0].sum()


def _with_itself(tiled):
    inputs = _draw(5, 7)
    assert np.array_equal(tiled(*inputs, 3), tiled(*inputs, 3))


tiled_test = CatchFaults(
    level=3,
    trains="a test with ragged blocks and masks",
    right={
        "the formula": _formula,
        "by blocks": lambda query, key, value, block: _full(query, key, value, block),
        "by PyTorch": _by_torch,
    },
    faults=(
        Mistake(
            "last keys left out",
            "It is right where the number of keys is a multiple of the block. Take one that is "
            "not.",
            lambda q, k, v, block: _full(
                q,
                k,
                v,
                block,
                cut=lambda n, b: _whole_blocks(n, b) or _slices(n, b),
                cut_queries=_slices,
            ),
        ),
        Mistake(
            "last queries left 0",
            "It is right where the number of queries is a multiple of the block. Take one that is "
            "not.",
            lambda q, k, v, block: _full(q, k, v, block, cut_queries=_whole_blocks),
        ),
        Mistake(
            "last queries missing",
            "The result is shorter than the query where that is no multiple of the block. Compare "
            "the shape.",
            lambda q, k, v, block: _full(q, k, v, block)[: len(q) // block * block],
        ),
        Mistake(
            "last block filled up with zeros",
            "A key of zeros has a score of 0, and that has a weight. Take a number of keys that is "
            "no multiple of the block.",
            _filled_up,
        ),
        Mistake(
            "last keys seen twice",
            "The last block is moved back until it is full. Take a number of keys that is no "
            "multiple of the block.",
            lambda q, k, v, block: _full(q, k, v, block, cut=_moved_back, cut_queries=_slices),
        ),
        Mistake(
            "sums not corrected",
            "One block of keys, or equal scores, cannot show it. Take several blocks.",
            partial(_full, sums_too=False),
        ),
        Mistake(
            "total not corrected",
            "One block of keys, or equal scores, cannot show it. Take several blocks.",
            partial(_full, total_too=False),
        ),
        Mistake(
            "the first block of keys alone",
            "One block of keys cannot show it. Take several.",
            lambda q, k, v, block: _full(q, k[:block], v[:block], block),
        ),
        Mistake(
            "as many keys read as there are queries",
            "It is right where there are no more keys than queries.",
            _as_long_as("query"),
        ),
        Mistake(
            "as many queries answered as there are keys",
            "It is right where there are no more queries than keys.",
            _as_long_as("key"),
        ),
        Mistake(
            "zeros where a block is longer than all keys",
            "Take a block that is longer than the sequence, too.",
            lambda q, k, v, block: _full(q, k, v, block) * (block <= len(k)),
        ),
        Mistake(
            "the scale left out",
            "Compare numbers, for queries wider than 1.",
            partial(_full, scale=1.0),
        ),
        Mistake(
            "the width of the values in the scale",
            "It is right where the values are as wide as the queries. Take another width.",
            lambda q, k, v, block: _full(q, k, v, block, scale=v.shape[1] ** -0.5),
        ),
        Mistake(
            "queries in reverse order",
            "Sums and means over the queries cannot show it. Compare number by number.",
            lambda q, k, v, block: _full(q, k, v, block)[::-1],
        ),
        Mistake(
            "earlier queries left 0",
            "Only the last block of queries is answered. Compare all of them.",
            _only_last_block,
        ),
        Mistake(
            "one total for all queries",
            "It is right for the first query, whose total it is. Compare all of them.",
            _one_total,
        ),
        Mistake(
            "every number too small",
            "The result lies below the right one everywhere. Compare the size of the difference.",
            lambda q, k, v, block: _full(q, k, v, block) - 1,
        ),
        Mistake(
            "half precision",
            "It is right to three digits only. In float64 the rounding is far below 1e-8.",
            lambda q, k, v, block: _full(q, k, v, block).astype(np.float16).astype(float),
        ),
    ),
    mistakes=(
        Mistake(
            "only the shape",
            "Most wrong versions have the right shape. Compare numbers.",
            *_weak(*_GOOD, look=np.shape),
        ),
        Mistake(
            "an assertion that no fault breaks",
            "What the test asserts holds for any of these functions. Compare with the formula.",
            _with_itself,
        ),
        Mistake(
            "multiples of the block only",
            "Every number of keys is a multiple of the block, or smaller than it. Take one that is "
            "not.",
            *_weak((4, 8, 2), (8, 4, 2), (2, 2, 4)),
            *_weak((6, 9, 3), (9, 6, 3), (3, 3, 9)),
        ),
        Mistake(
            "as many keys as queries, in whole blocks",
            "The lengths are equal and multiples of the block. Take lengths that are neither.",
            *_weak((6, 6, 2)),
            *_weak((8, 8, 4), (9, 9, 3)),
        ),
        Mistake(
            "as many keys as queries",
            "A version that takes one length for the other passes. Take more keys than queries, "
            "and more queries than keys.",
            *_weak((7, 7, 3), (3, 3, 8)),
        ),
        Mistake(
            "the same number of keys and queries, and no long block",
            "Take other numbers of keys than of queries, and a block that is longer than both.",
            *_weak((7, 7, 3)),
            *_weak((5, 5, 2), (7, 7, 2)),
        ),
        Mistake(
            "never more queries than keys",
            "A version that answers no more queries than there are keys passes.",
            *_weak((5, 7, 3), (3, 4, 8)),
        ),
        Mistake(
            "never more keys than queries",
            "A version that reads no more keys than there are queries passes.",
            *_weak((7, 5, 3), (4, 3, 8)),
        ),
        Mistake(
            "no block longer than the sequence",
            "A length below the block is no multiple of it either. Take one.",
            *_weak((5, 7, 3), (7, 5, 3)),
        ),
        Mistake(
            "one block only",
            "With one block nothing needs a correction. Take several blocks.",
            *_weak((5, 7, 8), (7, 5, 8)),
        ),
        Mistake(
            "whole blocks only",
            "Every length is a multiple of the block, as it always is of a block of 1. Take some "
            "that are not.",
            *_weak((5, 7, 1), (7, 5, 1)),
            *_weak((4, 8, 2), (8, 4, 2)),
            *_weak((6, 12, 3), (12, 6, 3)),
        ),
        Mistake(
            "equal scores",
            "With equal scores the largest never changes, and nothing needs a correction.",
            *_weak(*_GOOD, change=lambda q, k, v: (0 * q, k, v)),
        ),
        Mistake(
            "constant values",
            "An average of equal values is that value, whatever the weights.",
            *_weak(*_GOOD, change=lambda q, k, v: (q, k, 0 * v + 1)),
        ),
        Mistake(
            "only the first query",
            "What the test does not look at can be any number. Compare all queries.",
            *_weak(*_GOOD, look=lambda x: x[0]),
        ),
        Mistake(
            "only the last query",
            "What the test does not look at can be any number. Compare all queries.",
            *_weak(*_GOOD, look=lambda x: x[-1]),
        ),
        Mistake(
            "only a sum or a mean",
            "Rows in another order have the same sum. Compare number by number.",
            *_weak(*_GOOD, look=np.sum),
            *_weak(*_GOOD, look=np.mean),
        ),
        Mistake(
            "a difference with its sign",
            "A result that is too small has a negative difference, below any bound. Compare its "
            "absolute value.",
            *_weak(*_GOOD, agree=lambda mine, right: (mine - right).max() < 1e-8),
        ),
        Mistake(
            "a coarse comparison",
            "The bound is far above the rounding of float64, so a coarse result passes.",
            *_weak(*_GOOD, agree=lambda mine, right: abs(mine - right).max() < 0.1),
        ),
        Mistake(
            "values as wide as the queries",
            "A version that takes one width for the other passes. Take values of another width.",
            _sizes(*_GOOD, v=4),
        ),
    ),
    hints=(
        "Compare with the formula, at lengths that are no multiple of the block.",
        "Queries and keys have a length each. Take more keys than queries, and then more queries "
        "than keys.",
        "For instance 5 queries and 7 keys in blocks of 3, then 7 and 5, then 4 and 3 in blocks of "
        "8; queries of width 4, values of width 3.",
    ),
)

EXERCISES = {
    "window_blocks": window_blocks,
    "merge_parts": merge_parts,
    "tiled_fault": tiled_fault,
    "scores_gradient": scores_gradient,
    "tiled_test": tiled_test,
}
