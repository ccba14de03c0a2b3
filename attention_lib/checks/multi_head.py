"""The exercises of chapter 4, multi_head: references, cases, known mistakes, hints."""

from functools import partial
from itertools import permutations

import numpy as np
import torch

from attention_lib.checks.engine import Case, CatchFaults, Mistake, PredictValue, WriteFunction
from attention_lib.lookup import softmax
from attention_lib.multi_head import MultiHeadAttention, numpy_multi_head_attention

# ---------------------------------------------------------------------------- head_parameters

EMBED_DIM, HEADS = 12, 3
D = EMBED_DIM // HEADS


def _rows_of_head_1():
    layer = MultiHeadAttention(EMBED_DIM, HEADS)
    projections = layer.q_proj, layer.k_proj, layer.v_proj
    return sum(p[D : 2 * D].numel() for linear in projections for p in linear.parameters())


head_parameters = PredictValue(
    level=1,
    trains="counting the parameters of one head",
    answer=_rows_of_head_1,
    mistakes=(
        Mistake(
            "biases forgotten",
            "The matrices are counted right. Each row of a projection has a bias, too.",
            3 * D * EMBED_DIM,
        ),
        Mistake(
            "one projection alone",
            "A head has rows in three projections, queries, keys and values, each row reads all "
            "features of the input, and each has a bias.",
            D * EMBED_DIM + D,
            D * EMBED_DIM,
        ),
        Mistake(
            "all heads together",
            "These are the three projections as a whole, from 12 features to 12. One head makes "
            "12 / 3 features of its own.",
            3 * (EMBED_DIM**2 + EMBED_DIM),
            3 * EMBED_DIM**2,
        ),
        Mistake(
            "the head reads its own features only",
            "That would be a projection from 4 to 4. A head makes 4 features, but reads all 12.",
            3 * (D * D + D),
        ),
        Mistake(
            "output projection counted as well",
            "The question is about queries, keys and values. In the output projection a head owns "
            "columns, and no bias.",
            3 * (D * EMBED_DIM + D) + D * EMBED_DIM,
            4 * (D * EMBED_DIM + D),
            4 * D * EMBED_DIM,
        ),
        Mistake(
            "the whole layer",
            "These are all four projections with all their heads.",
            4 * (EMBED_DIM**2 + EMBED_DIM),
            4 * EMBED_DIM**2,
        ),
        Mistake(
            "a bias for each feature that is read",
            "A bias is added to the result: one number for each row of the matrix.",
            3 * (D * EMBED_DIM + EMBED_DIM),
        ),
        Mistake(
            "as many rows as there are heads",
            "The 12 rows are shared out among 3 heads. How many does one get?",
            3 * (HEADS * EMBED_DIM + HEADS),
            3 * HEADS * EMBED_DIM,
        ),
    ),
    hints=(
        "Each of the three matrices has 12 rows, one for each feature that it makes, and each row "
        "has a bias. How many of the rows belong to one head?",
        "A head is 12 / 3 features wide, so it owns as many rows; each reads all 12 features.",
        "In one projection: 4 rows of 12 numbers, and 4 biases. There are three projections.",
    ),
)

# ---------------------------------------------------------------------------- split_fault

# batch, words, heads, width of a head
SIZES = {
    (1, 1, 1, 2): "a single word and head",
    (1, 2, 2, 1): "heads of width 1",
    (1, 2, 1, 3): "one head",
    (1, 1, 2, 3): "one word",
    (1, 2, 2, 2): "all sizes but the batch equal",
    (2, 2, 2, 2): "all sizes equal",
    (2, 3, 2, 2): "two sentences",
    (1, 4, 3, 2): "the chapter's sizes",
    (3, 2, 2, 4): "wide heads",
    (2, 4, 3, 1): "narrow heads",
    (2, 5, 3, 4): "all sizes different",
}


def _split(x, num_heads):
    return x.reshape(*x.shape[:-1], num_heads, x.shape[-1] // num_heads).swapaxes(-3, -2)


def _numbers(*shape):
    """Different numbers in a mixed order, none of them whole."""
    rng = np.random.default_rng(11)
    return rng.permutation(np.arange(np.prod(shape)) / 2 + 0.25).reshape(shape)


def _split_cases():
    for (batch, words, heads, d), label in SIZES.items():
        yield Case(label, _numbers(batch, words, heads * d), heads)
    yield Case("float32", _numbers(2, 3, 4).astype(np.float32), 2)


def _into(*order, cut="hd", shape=None):
    """Cut the width in one of two ways, then order the axes; perhaps reshape to `shape`."""

    def split(x, num_heads):
        batch, words, width = x.shape
        sizes = {"b": batch, "l": words, "h": num_heads, "d": width // num_heads}
        parts = x.reshape(batch, words, *(sizes[letter] for letter in cut)).transpose(order)
        if shape is None:
            return parts
        return parts.reshape([int(np.prod([sizes[letter] for letter in axis])) for axis in shape])

    return split


def _cut_at_once(x, num_heads):
    batch, words, width = x.shape
    return x.reshape(batch, num_heads, words, width // num_heads)


def _cut_after_transpose(x, num_heads):
    return _cut_at_once(x.swapaxes(1, 2).reshape(x.shape), num_heads)


split_fault = WriteFunction(
    level=1,
    trains="reshape against transpose",
    reference=lambda x, num_heads: _split(x, num_heads),
    cases=tuple(_split_cases()),
    mistakes=(
        Mistake(
            "the fault is still there: reshaped at once",
            "A reshape keeps the reading order: the first head gets the first words, not its "
            "features of every word. Cut the width alone, then move the new axis.",
            _cut_at_once,
        ),
        Mistake(
            "no transpose",
            "The cut is right: (b, l, h, d). The heads must still stand before the words.",
            _into(0, 1, 2, 3),
        ),
        Mistake(
            "features dealt out in turn",
            "Head 0 gets features 0, h, 2h and so on. Its features are the first d, side by side: "
            "cut the width into (h, d), not into (d, h).",
            _into(0, 3, 1, 2, cut="dh"),
        ),
        Mistake(
            "number of heads and width of a head swapped",
            "The result has d heads of width h. The argument is the number of heads.",
            _into(0, 2, 1, 3, cut="dh"),
        ),
        Mistake(
            "words last",
            "The shape is (b, h, d, l). The last axis is the one that dot products run over: the "
            "features.",
            _into(0, 2, 3, 1),
        ),
        Mistake(
            "transposed first, then cut",
            "After a transpose of words and features the reading order is another one. Cut the "
            "width first, while it is the last axis.",
            _cut_after_transpose,
        ),
        Mistake(
            "heads before the batch",
            "The batch stays in front: (b, h, l, d).",
            _into(2, 0, 1, 3),
        ),
        Mistake(
            "batch and heads folded into one axis",
            "Some libraries do this on the way. Here both keep an axis of their own.",
            _into(0, 2, 1, 3, shape=("bh", "l", "d")),
        ),
        Mistake(
            "batch and heads mixed up",
            "The heads were moved to the front, and a reshape brought the shape back, but not the "
            "order: head 0 of the second sentence lands where head 1 of the first one belongs.",
            _into(2, 0, 1, 3, shape=("b", "h", "l", "d")),
        ),
        Mistake(
            "heads in reverse",
            "Head 0 owns the first features.",
            lambda x, h: _split(x, h)[:, ::-1],
        ),
        Mistake(
            "every head gets the same features",
            "All heads are copies of the first one. Head i owns features i * d to (i + 1) * d - 1.",
            lambda x, h: np.repeat(_split(x, h)[:, :1], h, axis=1),
        ),
        Mistake(
            "every head gets all features",
            "The width was not cut. A head is width / num_heads wide.",
            lambda x, h: np.repeat(x[:, None], h, axis=1),
        ),
    ),
    hints=(
        "The width alone is cut: which two axes take its place?",
        "First x.reshape(batch, length, num_heads, d): each word keeps its own numbers.",
        "Then swapaxes(1, 2) moves the heads in front of the words.",
    ),
)

# ---------------------------------------------------------------------------- merge


def _merge(x):
    batch, heads, words, d = x.shape
    return x.swapaxes(1, 2).reshape(batch, words, heads * d)


def _merge_cases():
    for (batch, words, heads, d), label in SIZES.items():
        yield Case(label, _numbers(batch, heads, words, d))
    yield Case("float32", _numbers(2, 2, 3, 2).astype(np.float32))


def _from(*order, shape):
    def merge(x):
        sizes = dict(zip("bhld", x.shape, strict=True))
        new = [int(np.prod([sizes[letter] for letter in axis])) for axis in shape]
        return x.transpose(order).reshape(new)

    return merge


merge = WriteFunction(
    level=2,
    trains="joining heads in the right order",
    reference=lambda x: _merge(x),
    cases=tuple(_merge_cases()),
    mistakes=(
        Mistake(
            "reshaped at once",
            "The shape is right, and words are mixed: a reshape keeps the reading order, in which "
            "all words of one head come first. Move the heads behind the words before it.",
            _from(0, 1, 2, 3, shape=("b", "l", "hd")),
        ),
        Mistake(
            "joined along the words",
            "Every head gave an output to every word. Joined along the words, there are too many "
            "of them; the heads are laid side by side in the last axis.",
            _from(0, 1, 2, 3, shape=("b", "hl", "d")),
            _from(0, 2, 1, 3, shape=("b", "lh", "d")),
        ),
        Mistake(
            "no reshape",
            "The heads stand behind the words: good. The last two axes must still become one.",
            _from(0, 2, 1, 3, shape="blhd"),
        ),
        Mistake(
            "features laid in turn",
            "Feature 0 of all heads comes first. All features of head 0 must come first.",
            _from(0, 2, 3, 1, shape=("b", "l", "dh")),
        ),
        Mistake(
            "the wrong two axes swapped",
            "Words and features have changed places. It is heads and words that must.",
            _from(0, 1, 3, 2, shape=("b", "l", "hd")),
        ),
        Mistake(
            "heads added",
            "A sum cannot be taken apart again. The heads are laid side by side.",
            lambda x: x.sum(axis=1),
        ),
        Mistake(
            "heads averaged",
            "A mean cannot be taken apart again. The heads are laid side by side.",
            lambda x: x.mean(axis=1),
        ),
        Mistake(
            "one head alone",
            "The other heads are lost: all of them are laid side by side.",
            lambda x: x[:, 0],
            lambda x: x[:, -1],
        ),
        Mistake(
            "words before the batch",
            "The batch stays in front: (b, l, h * d).",
            _from(2, 0, 1, 3, shape=("l", "b", "hd")),
        ),
        Mistake(
            "batch and words folded into one axis",
            "The sentences keep an axis of their own: (b, l, h * d).",
            _from(0, 2, 1, 3, shape=("bl", "hd")),
        ),
        Mistake(
            "heads in reverse",
            "Head 0 comes first.",
            lambda x: _merge(x[:, ::-1]),
        ),
    ),
    hints=(
        "The split is a reshape to (b, l, h, d), then a transpose to (b, h, l, d). Undo the "
        "transpose first.",
        "x.swapaxes(1, 2) brings the words in front of the heads: (b, l, h, d).",
        "Then reshape(batch, length, heads * d) joins the last two axes.",
    ),
)

# ---------------------------------------------------------------------------- multi_head


def _layer_cases():
    rng = np.random.default_rng(12)
    # words, sentences, width, heads
    sizes = {
        (1, 1, 2, 1): "a single word and head",
        (2, 1, 2, 2): "heads of width 1",
        (2, 2, 2, 1): "one head",
        (2, 1, 4, 2): "two heads of width 2",
        (2, 2, 4, 2): "all sizes but the width equal",
        (3, 1, 6, 2): "two heads of width 3",
        (3, 2, 6, 3): "three heads of width 2",
        (2, 3, 4, 2): "more sentences than words",
        (4, 2, 8, 2): "two heads of width 4",
    }

    def arrays(length, batch, embed, heads):
        shapes = (length, batch, embed), (3 * embed, embed), (embed, embed), (3 * embed,), (embed,)
        inputs, *parameters = (rng.normal(size=shape).round(1) for shape in shapes)
        return inputs, heads, *parameters

    for size, label in sizes.items():
        yield Case(label, *arrays(*size))
    single = arrays(3, 2, 4, 2)
    yield Case("float32", *(np.float32(x) if np.ndim(x) else x for x in single))
    inputs, *rest = arrays(2, 1, 4, 2)
    yield Case("large inputs (overflow)", (100 * inputs).round(), *rest, extreme=True)


def _layer(
    inputs, heads, w, w_out, b, b_out, *,
    parts=lambda packed, heads: np.split(packed, 3, axis=-1), order=(0, 1, 2),
    split=_split, merge=_merge, weights=softmax, axis=-1,
    scale=lambda heads, d: d**-0.5, across=False, back=True,
):  # fmt: skip
    """The layer with one choice for each step that can go wrong."""
    packed = inputs @ w.T + b
    packed = packed if across else packed.swapaxes(0, 1)
    thirds = parts(packed, heads)
    query, key, value = (split(thirds[i], heads) for i in order)
    scores = query @ key.swapaxes(-2, -1) * scale(heads, inputs.shape[-1] // heads)
    output = merge(weights(scores, axis=axis) @ value)
    output = output.swapaxes(0, 1) if back and not across else output
    return output @ w_out.T + b_out


def _by_head(packed, heads):
    """Query, key and value rows of head 0, then those of head 1, and so on."""
    return list(np.moveaxis(packed.reshape(*packed.shape[:-1], heads, 3, -1), -2, 0).reshape(
        3, *packed.shape[:-1], -1))  # fmt: skip


def _unstable(scores, axis=-1):
    return np.exp(scores) / np.exp(scores).sum(axis=axis, keepdims=True)


def _same_for_all_heads(scores, axis=-1):
    return np.broadcast_to(softmax(scores).mean(axis=1, keepdims=True), scores.shape)


def _softmax_over_heads(scores, axis=-1):
    return softmax(scores, axis=1)


def _transposed(scores, axis=-1):
    return softmax(scores).swapaxes(-2, -1)


def _causal(scores, axis=-1):
    return softmax(np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf))


def _stay(x):
    return x.reshape(*x.shape[:2], -1)


def _merge_at_once(x):
    batch, heads, words, d = x.shape
    return x.reshape(batch, words, heads * d)


_TURNS = _into(0, 3, 1, 2, cut="dh")
_STAYS = _into(0, 1, 2, 3)


def _no_out_projection(x, h, w, wo, b, bo):
    return _layer(x, h, w, np.eye(len(wo)), b, bo)


def _not_transposed(x, h, w, wo, b, bo):
    return _layer(x, h, np.concatenate([block.T for block in np.split(w, 3)]), wo, b, bo)


multi_head = WriteFunction(
    level=3,
    trains="several heads from packed parameters",
    reference=lambda inputs, num_heads, in_proj_weight, out_proj_weight, in_proj_bias, out_proj_bias: (  # noqa: E501
        numpy_multi_head_attention(
            inputs, num_heads, in_proj_weight, out_proj_weight, in_proj_bias, out_proj_bias
        )
    ),
    cases=tuple(_layer_cases()),
    mistakes=(
        Mistake(
            "split by a reshape alone",
            "The shape (b, h, l, d) is right, and words are torn apart. Reshape to (b, l, h, d), "
            "then move the heads in front of the words.",
            partial(_layer, split=_cut_at_once),
            partial(_layer, split=_cut_at_once, merge=_merge_at_once),
        ),
        Mistake(
            "merged by a reshape alone",
            "The split is right. On the way back the heads must move behind the words before they "
            "are joined.",
            partial(_layer, merge=_merge_at_once),
        ),
        Mistake(
            "features laid in turn when the heads are merged",
            "The split is right. On the way back feature 0 of all heads comes first, where all "
            "features of head 0 must.",
            partial(_layer, merge=_from(0, 2, 3, 1, shape=("b", "l", "dh"))),
        ),
        Mistake(
            "heads attend to heads",
            "The split has no transpose: in (b, l, h, d) the products run over the heads of one "
            "word, and no word sees another.",
            partial(_layer, split=_STAYS, merge=_stay),
        ),
        Mistake(
            "features dealt out to the heads in turn",
            "Head 0 owns the first d rows of each projection, not every h-th one.",
            partial(_layer, split=_TURNS, merge=_from(0, 2, 3, 1, shape=("b", "l", "dh"))),
            partial(_layer, split=_TURNS),
        ),
        Mistake(
            "one head of full width",
            "num_heads is not used: there is one softmax over the full width.",
            lambda x, h, *parameters: _layer(x, 1, *parameters),
        ),
        Mistake(
            "divided by the root of the full width",
            "Queries and keys of one head meet in a dot product of embed / num_heads numbers.",
            partial(_layer, scale=lambda h, d: (h * d) ** -0.5),
        ),
        Mistake(
            "divided by the root of the number of heads",
            "The divisor is the root of the width of a head, as chapter 3 shows.",
            partial(_layer, scale=lambda h, d: h**-0.5),
        ),
        Mistake(
            "divided by the width of a head, not by its root",
            "The scores come out too small, and the weights too even. It is the root.",
            partial(_layer, scale=lambda h, d: 1 / d),
        ),
        Mistake(
            "no scale",
            "The scores are divided by the root of the width of a head.",
            partial(_layer, scale=lambda h, d: 1),
        ),
        Mistake(
            "one table of weights for all heads",
            "The weights were averaged over the heads. Each head keeps its own, or there would be "
            "no need for several.",
            partial(_layer, weights=_same_for_all_heads),
        ),
        Mistake(
            "softmax over the heads",
            "The weights of one pair of words add to 1 over the heads. They add to 1 over the "
            "keys, the last axis.",
            partial(_layer, weights=_softmax_over_heads),
        ),
        Mistake(
            "softmax over the queries",
            "The weights of all queries for one key add to 1. For one query, those of all keys "
            "must: the softmax runs along the last axis.",
            partial(_layer, axis=-2),
        ),
        Mistake(
            "softmax over the batch",
            "Axis 0 of the scores counts the sentences. The softmax runs along the last axis, "
            "over the keys.",
            partial(_layer, axis=0),
        ),
        Mistake(
            "weights transposed",
            "Each word's own weights are right, but they stand in a column, and the rows multiply "
            "the values. Row i must hold the weights of the word that asks, word i.",
            partial(_layer, weights=_transposed),
        ),
        Mistake(
            "attends only to the past",
            "Every word sees itself and the words before it. That is a causal mask; here each word "
            "sees all words.",
            partial(_layer, weights=_causal),
        ),
        Mistake(
            "packed rows taken head by head",
            "In this order the rows of head 0 for query, key and value come first; some libraries "
            "store them so. PyTorch has all query rows first, with the heads inside.",
            partial(_layer, parts=_by_head),
        ),
        Mistake(
            "another order of queries, keys and values",
            "The rows of in_proj_weight hold the queries first, then the keys, then the values.",
            *(
                partial(_layer, order=order)
                for order in permutations(range(3))
                if order != (0, 1, 2)
            ),
        ),
        Mistake(
            "both biases left out",
            "Each projection adds a bias. A fresh layer of PyTorch has biases of 0, so the fault "
            "shows only later.",
            lambda x, h, w, wo, b, bo: _layer(x, h, w, wo, 0 * b, 0 * bo),
        ),
        Mistake(
            "bias of the input projection left out",
            "The output bias is there. in_proj_bias is still missing.",
            lambda x, h, w, wo, b, bo: _layer(x, h, w, wo, 0 * b, bo),
        ),
        Mistake(
            "bias of the output projection left out",
            "in_proj_bias is there. out_proj_bias is still missing.",
            lambda x, h, w, wo, b, bo: _layer(x, h, w, wo, b, 0 * bo),
        ),
        Mistake(
            "output bias added before the output projection",
            "out_proj_bias goes through out_proj_weight here. It is added after that product.",
            lambda x, h, w, wo, b, bo: _layer(x, h, w, wo, b, bo @ wo.T),
        ),
        Mistake(
            "output projection left out",
            "The heads lie side by side, but nothing mixes them: out_proj_weight is not used.",
            _no_out_projection,
            lambda x, h, w, wo, b, bo: _no_out_projection(x, h, w, wo, b, 0 * bo),
        ),
        Mistake(
            "output projection not transposed",
            "The last product needs out_proj_weight.T. The matrix is square, so nothing fails.",
            lambda x, h, w, wo, b, bo: _layer(x, h, w, wo.T, b, bo),
        ),
        Mistake(
            "input projection not transposed",
            "The numbers are those of inputs @ block. PyTorch stores (out, in) and transposes. The "
            "blocks are square, so nothing fails.",
            _not_transposed,
        ),
        Mistake(
            "attends across the batch",
            "The sentences attend to each other: the axis before the features must count words. "
            "Bring the batch to the front first.",
            partial(_layer, across=True),
        ),
        Mistake(
            "output left in (batch, seq, embed)",
            "The layout of the result is not that of the inputs: swap the two axes back.",
            partial(_layer, back=False),
        ),
        Mistake(
            "no maximum subtracted",
            "For large inputs np.exp overflows and the result is NaN. Use the stable softmax of "
            "chapter 1.",
            partial(_layer, weights=_unstable),
        ),
    ),
    hints=(
        "packed_attention of section 2.6 has one head. Which two steps are new, and which width "
        "does the divisor see?",
        "After the three parts are (batch, seq, embed), split each into (batch, heads, seq, d); "
        "the scores, the softmax and the average then work for all heads at once.",
        "The divisor is np.sqrt(embed // num_heads). Merge, swap batch and seq back, and apply "
        "the output projection with its bias.",
    ),
)

# ---------------------------------------------------------------------------- split_test


def _by_slices(x, num_heads):
    x = np.asarray(x)
    d = x.shape[-1] // num_heads
    return np.stack([x[..., h * d : (h + 1) * d] for h in range(num_heads)], axis=-3)


def _by_torch(x, num_heads):
    x = torch.tensor(np.asarray(x))
    return x.unflatten(-1, (num_heads, -1)).transpose(-3, -2).numpy()


def _of_arrays(split):
    return lambda x, num_heads: split(np.asarray(x), num_heads)


ALL = slice(None)


def _empty(*place):
    """A split whose loop leaves out a head, a word or a sentence."""

    def split(x, num_heads):
        heads = _split(np.asarray(x), num_heads).copy()
        heads[place] = 0
        return heads

    return split


def _compare(batch, words, heads, d, look=lambda result: result):
    """A test that compares a split, or what `look` takes from it, with the right one."""

    def test(split):
        x = _numbers(batch, words, heads * d)
        actual, expected = look(np.asarray(split(x, heads))), look(_split(x, heads))
        assert np.shape(actual) == np.shape(expected)
        assert np.allclose(actual, expected)

    return test


def _constant(split):
    assert np.array_equal(split(np.ones((2, 5, 12)), 3), np.ones((2, 3, 5, 4)))


def _with_itself(split):
    x = _numbers(2, 5, 12)
    assert np.array_equal(split(x, 3), split(x, 3))


def _way_back(split):
    x = _numbers(2, 5, 12)
    assert np.array_equal(np.swapaxes(split(x, 3), 1, 2).reshape(x.shape), x)


split_test = CatchFaults(
    level=2,
    trains="a test that sees the order of numbers, not only the shape",
    right={
        "reshape and swapaxes": _of_arrays(_split),
        "slices, stacked": _by_slices,
        "PyTorch's unflatten": _by_torch,
    },
    faults=(
        Mistake(
            "reshape only",
            "The shape is right, the numbers are not. Use more than one word and more than one "
            "head, and compare numbers.",
            _of_arrays(_cut_at_once),
        ),
        Mistake(
            "no transpose",
            "Compare the shape, or numbers for more than one word and more than one head.",
            _of_arrays(_into(0, 1, 2, 3)),
        ),
        Mistake(
            "features dealt out in turn",
            "Compare the features of one head, for heads wider than 1.",
            _of_arrays(_TURNS),
        ),
        Mistake(
            "number of heads and width of a head swapped",
            "Use another number of heads than a head has features, and compare the shape.",
            _of_arrays(_into(0, 2, 1, 3, cut="dh")),
        ),
        Mistake(
            "transposed first, then cut",
            "The shape is right, the numbers are not. Compare numbers.",
            _of_arrays(_cut_after_transpose),
        ),
        Mistake(
            "batch and heads mixed up",
            "It is right for one sentence. Use two.",
            _of_arrays(_into(2, 0, 1, 3, shape=("b", "h", "l", "d"))),
        ),
        Mistake(
            "heads in reverse",
            "Compare the numbers of a head that is not in the middle.",
            _of_arrays(lambda x, h: _split(x, h)[:, ::-1]),
        ),
        Mistake("first head left empty", "Compare all heads.", _empty(..., 0, ALL, ALL)),
        Mistake("last head left empty", "Compare all heads.", _empty(..., -1, ALL, ALL)),
        Mistake("first word left empty", "Compare all words.", _empty(..., 0, ALL)),
        Mistake("last word left empty", "Compare all words.", _empty(..., -1, ALL)),
        Mistake(
            "second sentence left empty",
            "Compare all sentences of a batch of two.",
            _empty(slice(1, None)),
        ),
    ),
    mistakes=(
        Mistake(
            "only the shape",
            "Most wrong splits have the right shape. Compare numbers.",
            _compare(2, 5, 3, 4, look=np.shape),
            _compare(2, 3, 2, 4, look=np.shape),
        ),
        Mistake(
            "an assertion that no fault breaks",
            "What the test asserts holds for any of these functions. Say of a number where it "
            "must be.",
            _with_itself,
        ),
        Mistake(
            "one head only",
            "With one head there is nothing to split. Use more.",
            _compare(2, 5, 1, 4),
            _compare(1, 5, 1, 4),
        ),
        Mistake(
            "one word only",
            "With one word there is no order of words to mix up. Use more.",
            _compare(2, 1, 3, 4),
            _compare(1, 1, 3, 4),
        ),
        Mistake(
            "one sentence only",
            "A split that mixes sentences passes. Use a batch of two.",
            _compare(1, 5, 3, 4),
        ),
        Mistake(
            "heads of width 1",
            "A head with one feature cannot show in which order it gets its features. Use wider "
            "heads.",
            _compare(2, 5, 3, 1),
        ),
        Mistake(
            "number and width of the heads not told apart",
            "A split that takes the one for the other passes. Use two different numbers for them, "
            "and compare the shape.",
            _compare(2, 5, 3, 3),
            _way_back,
        ),
        Mistake(
            "constant input",
            "All places hold the same number, so wrong places do not show. Number them.",
            _constant,
        ),
        Mistake(
            "right numbers at wrong places pass",
            "That is so for a sum or for sorted numbers. Compare place by place.",
            _compare(2, 5, 3, 4, look=np.sum),
            _compare(2, 5, 3, 4, look=lambda result: np.sort(result, axis=None)),
        ),
        Mistake(
            "only the first head",
            "What the test does not look at can be any number. Compare all heads.",
            _compare(2, 5, 3, 4, look=lambda result: result[:, 0]),
        ),
        Mistake(
            "only the first sentence",
            "What the test does not look at can be any number. Compare both sentences.",
            _compare(2, 5, 3, 4, look=lambda result: result[0]),
        ),
        Mistake(
            "only the first word",
            "What the test does not look at can be any number. Compare all words.",
            _compare(2, 5, 3, 4, look=lambda result: result[0, 0, 0]),
            _compare(2, 5, 3, 4, look=lambda result: result[0, 0, 0, 1]),
        ),
    ),
    hints=(
        "np.arange(…).reshape(…) numbers the entries, so that each says where it comes from.",
        "Use two sentences, several words and heads, and make all four sizes different.",
        "heads[b, h, word, i] must be x[b, word, h * d + i]: a loop over np.ndindex(heads.shape) "
        "asserts it for all. Assert the shape, too.",
    ),
)

EXERCISES = {
    "head_parameters": head_parameters,
    "split_fault": split_fault,
    "merge": merge,
    "multi_head": multi_head,
    "split_test": split_test,
}
