"""The exercises of chapter 7, block: references, cases, known mistakes, hints."""

import numpy as np

from attention_lib.block import TransformerBlock
from attention_lib.checks.engine import Case, CatchFaults, Mistake, PredictValue, WriteFunction

# --------------------------------------------------------------------- feedforward_parameters

E, HIDDEN = 8, 32


def _feedforward_parameters():
    return sum(p.numel() for p in TransformerBlock(E, 2).feedforward.parameters())


feedforward_parameters = PredictValue(
    level=1,
    trains="counting parameters with biases",
    answer=_feedforward_parameters,
    mistakes=(
        Mistake(
            "biases forgotten",
            "The two matrices are counted right. Each linear layer has a bias too, one number for "
            "each feature that it makes.",
            2 * E * HIDDEN,
        ),
        Mistake(
            "one of the two biases",
            "Both linear layers have a bias: the first makes 32 features, the second 8.",
            2 * E * HIDDEN + HIDDEN,
            2 * E * HIDDEN + E,
        ),
        Mistake(
            "PyTorch's width by default",
            "nn.TransformerEncoderLayer has a hidden layer of 2048 unless told otherwise; here it "
            "is four times as wide as the stream.",
            2 * E * 2048 + 2048 + E,
        ),
        Mistake(
            "one of the two layers",
            "There are two: from 8 to the hidden width, and back. The attention of the block has "
            "288 parameters as well, and is no part of the feed-forward network.",
            E * HIDDEN + HIDDEN,
            HIDDEN * E + E,
            E * HIDDEN,
        ),
        Mistake(
            "hidden layer as wide as the stream",
            "By default the hidden layer is four times as wide.",
            2 * (E * E + E),
            2 * E * E,
        ),
        Mistake(
            "another hidden width",
            "By default the hidden layer is four times as wide as the stream: 32.",
            *(2 * E * n * E + n * E + E for n in (2, 3)),
        ),
        Mistake(
            "features counted",
            "The layers make 32 and 8 features. Their parameters are matrices, and biases.",
            HIDDEN + E,
            HIDDEN + 2 * E,
        ),
        Mistake(
            "the same bias for both",
            "The first layer makes 32 features, so it has 32 biases; the second makes 8.",
            2 * (E * HIDDEN + HIDDEN),
            2 * (E * HIDDEN + E),
        ),
        Mistake(
            "the whole block",
            "That counts attention and norms as well.",
            sum(p.numel() for p in TransformerBlock(E, 2).parameters()),
        ),
        Mistake(
            "with a norm",
            "A norm has 2 * 8 parameters, but it stands beside the feed-forward network.",
            2 * E * HIDDEN + HIDDEN + E + 2 * E,
            2 * E * HIDDEN + HIDDEN + E + 4 * E,
        ),
        Mistake(
            "once for each head",
            "The heads belong to the attention. There is one feed-forward network.",
            2 * (2 * E * HIDDEN + HIDDEN + E),
        ),
    ),
    hints=(
        "The hidden layer is 4 * 8 = 32 wide.",
        "The first linear layer has a matrix of 32 times 8 numbers, and a bias for each of the 32.",
        "The second has 8 times 32 numbers and 8 biases. Add the four.",
    ),
    tolerance=1e-6,
)

# ---------------------------------------------------------------------------- waves


def _waves(
    length, width, *,
    exponent=lambda columns, width: columns / width, base=10000.0, start=0, times=False,
    parts=(np.sin, np.cos), place="in turn", sign=1.0,
):  # fmt: skip
    """The waves with one choice for each step that can go wrong."""
    frequencies = base ** -exponent(np.arange(0, width, 2), width)
    positions = np.arange(start, start + length)[:, None]
    angles = sign * (positions / frequencies if times else positions * frequencies)
    first, second = (part(angles) for part in parts)
    if place == "halves":
        return np.concatenate((first, second), axis=1)
    if place == "rows":
        return np.stack((first, second)).reshape(length, width)
    return np.stack((first, second), axis=-1).reshape(length, width)


def _angle_of_each_column(length, width, factor=1):
    columns = np.arange(width)
    angles = np.arange(length)[:, None] / 10000 ** (factor * columns / width)
    return np.where(columns % 2 == 0, np.sin(angles), np.cos(angles))


waves = WriteFunction(
    level=2,
    trains="position waves without a loop",
    reference=lambda length, width: _waves(length, width),
    cases=(
        Case("one position", 1, 2),
        Case("width 2", 3, 2),
        Case("width 4", 2, 4),
        Case("more columns than positions", 3, 8),
        Case("as many columns as positions", 6, 6),
        Case("many positions", 40, 6),
        Case("width 10", 7, 10),
        Case("width 12", 5, 12),
    ),
    mistakes=(
        Mistake(
            "an angle of its own for each column",
            "Sine and cosine of a pair belong to the same angle: columns 2i and 2i + 1 share the "
            "exponent 2i / width.",
            _angle_of_each_column,
            lambda length, width: _angle_of_each_column(length, width, factor=2),
        ),
        Mistake(
            "sines first, then cosines",
            "The numbers are right. Sine and cosine of a pair stand side by side, in columns 2i "
            "and 2i + 1.",
            lambda length, width: _waves(length, width, place="halves"),
        ),
        Mistake(
            "cosines first, then sines",
            "Sine and cosine of a pair stand side by side: the sine in column 2i, the cosine in "
            "2i + 1.",
            lambda length, width: _waves(length, width, place="halves", parts=(np.cos, np.sin)),
        ),
        Mistake(
            "rows mixed",
            "np.stack puts the two tables one behind the other, and reshape then fills rows with "
            "numbers of several positions. Stack along the last axis: axis=-1.",
            lambda length, width: _waves(length, width, place="rows"),
        ),
        Mistake(
            "angles alone",
            "These are the angles. Their sines and cosines are the waves.",
            lambda length, width: _waves(length, width, parts=(np.array, np.array)),
            lambda length, width: _waves(length, width, parts=(np.array, np.array))[:, ::2],
        ),
        Mistake(
            "odd columns left 0",
            "The odd columns hold the cosines.",
            lambda length, width: _waves(length, width, parts=(np.sin, np.zeros_like)),
        ),
        Mistake(
            "turned backwards",
            "The angle grows with the position: no minus sign.",
            lambda length, width: _waves(length, width, sign=-1.0),
        ),
        Mistake(
            "pairs numbered from 1",
            "The first pair has i = 0, so its exponent is 0.",
            lambda length, width: _waves(length, width, exponent=lambda c, w: (c + 2) / w),
        ),
        Mistake(
            "exponents up to 1",
            "The last exponent is (width - 2) / width, below 1: divide by the width. "
            "np.linspace(0, 1, ...) goes one step too far.",
            lambda length, width: _waves(
                length, width, exponent=lambda c, w: np.linspace(0, 1, w // 2)
            ),
        ),
        Mistake(
            "brackets missing",
            "10000 ** c / width is (10000 ** c) / width. The quotient is the exponent.",
            lambda length, width: _waves(
                length, width, exponent=lambda c, w: c - np.log(w) / np.log(10000)
            ),
        ),
        Mistake(
            "sine and cosine swapped",
            "The even columns hold the sines.",
            lambda length, width: _waves(length, width, parts=(np.cos, np.sin)),
        ),
        Mistake(
            "the number of the pair in the exponent",
            "The exponent is 2i / width, the even column over the width; i / width is half of it.",
            lambda length, width: _waves(length, width, exponent=lambda c, w: c / 2 / w),
        ),
        Mistake(
            "the even column doubled",
            "The exponent is 2i / width for the pair number i, and 2i is already the even column.",
            lambda length, width: _waves(length, width, exponent=lambda c, w: 2 * c / w),
        ),
        Mistake(
            "not divided by the width",
            "The exponent is 2i / width.",
            lambda length, width: _waves(length, width, exponent=lambda c, w: c.astype(float)),
        ),
        Mistake(
            "positions from 1",
            "The first position is 0: sine 0 and cosine 1.",
            lambda length, width: _waves(length, width, start=1),
        ),
        Mistake(
            "multiplied by the power",
            "The position is divided by 10000 ** (2i / width), so later pairs turn more slowly.",
            lambda length, width: _waves(length, width, times=True),
        ),
        Mistake(
            "another base",
            "The base is 10000.",
            lambda length, width: _waves(length, width, base=1000.0),
            lambda length, width: _waves(length, width, base=100000.0),
        ),
        Mistake(
            "sines alone",
            "Odd columns hold cosines. Sines alone do not tell an angle from its mirror image.",
            lambda length, width: _waves(length, width, parts=(np.sin, np.sin)),
        ),
        Mistake(
            "cosines alone",
            "Even columns hold sines. Cosines alone do not tell an angle from its negative.",
            lambda length, width: _waves(length, width, parts=(np.cos, np.cos)),
        ),
        Mistake(
            "last position first",
            "The rows are in reverse order: row 0 belongs to position 0.",
            lambda length, width: _waves(length, width)[::-1],
        ),
        Mistake(
            "transposed",
            "A row is a position: (length, width).",
            lambda length, width: _waves(length, width).T,
        ),
    ),
    hints=(
        "np.arange(0, width, 2) are the even columns 2i.",
        "np.arange(length)[:, None] / 10000 ** (columns / width) is the table of angles.",
        "Make an empty (length, width) array; [:, 0::2] are its even columns, [:, 1::2] the odd "
        "ones.",
    ),
    tolerance=1e-6,  # angles computed in float32 are right too
)

# ---------------------------------------------------------------------------- add_positions


def _add_cases():
    rng = np.random.default_rng(31)
    sizes = {
        (2, 3, 1, 4): "width 1",
        (1, 2, 2, 3): "one sample",
        (2, 1, 3, 4): "one word",
        (3, 3, 2, 5): "as many samples as words",
        (2, 4, 3, 6): "two samples",
        (4, 2, 3, 5): "more samples than words",
        (3, 5, 4, 9): "a long table",
        (2, 3, 4, 4): "a table one row longer",
        (2, 4, 3, 4): "a table as long as the sentence",
    }
    for (batch, length, width, longest), label in sizes.items():
        x, table = rng.normal(size=(batch, length, width)), rng.normal(size=(longest, width))
        yield Case(label, x.round(2), table.round(2))


def _first_sample_alone(x, table):
    result = x.copy()
    result[0] += table[: x.shape[1]]
    return result


def _running_on(x, table):
    return x + table[: x.shape[0] * x.shape[1]].reshape(x.shape)


add_positions = WriteFunction(
    level=1,
    trains="which axis counts positions",
    reference=lambda x, table: x + table[: x.shape[1]],
    cases=tuple(_add_cases()),
    mistakes=(
        Mistake(
            "the fault is still there: one vector for each sample",
            "All words of a sample get the same row. Rows of the table belong to positions, axis 1 "
            "of x.",
            lambda x, table: x + table[: len(x), None],
        ),
        Mistake(
            "as many rows as samples",
            "One row is needed for each word, and their number is x.shape[1]; len(x) counts the "
            "samples.",
            lambda x, table: x + table[: len(x)],
        ),
        Mistake(
            "as many rows as features",
            "One row is needed for each word, and their number is x.shape[1]; x.shape[2] is the "
            "width.",
            lambda x, table: x + table[: x.shape[2]],
        ),
        Mistake(
            "one axis too many",
            "The number of rows is right. A table of shape (L, 1, E) runs along the samples, "
            "(L, E) along the words.",
            lambda x, table: x + table[: x.shape[1], None],
        ),
        Mistake(
            "one row for all",
            "Every word gets the same row of the table. Each position has a row of its own.",
            lambda x, table: x + table[x.shape[1]],
            lambda x, table: x + table[x.shape[1] - 1],
            lambda x, table: x + table[len(x)],
            lambda x, table: x + table[len(x) - 1],
        ),
        Mistake(
            "once for each sample",
            "Each row is added once: x + table[...] meets all samples in one step.",
            lambda x, table: x + len(x) * table[: x.shape[1]],
        ),
        Mistake(
            "the first sample alone",
            "Every sample has positions, not the first one alone.",
            _first_sample_alone,
        ),
        Mistake(
            "positions that run on",
            "Each sample begins at position 0 again.",
            _running_on,
        ),
        Mistake(
            "the words scaled",
            "The paper multiplies its embeddings by the root of the width. Here x comes as it is.",
            lambda x, table: x * x.shape[2] ** 0.5 + table[: x.shape[1]],
        ),
        Mistake(
            "right and wrong together",
            "The rows of the positions are added, and a row for each sample besides.",
            lambda x, table: x + table[: x.shape[1]] + table[: len(x), None],
        ),
        Mistake(
            "nothing added",
            "This is x as it was. Positions come from the rows of the table.",
            lambda x, table: x + 0.0,
        ),
        Mistake(
            "subtracted",
            "The positions are added.",
            lambda x, table: x - table[: x.shape[1]],
        ),
        Mistake(
            "the first row for all",
            "Every word gets the row of position 0.",
            lambda x, table: x + table[0],
        ),
        Mistake(
            "the last rows of the table",
            "Position 0 has the first row.",
            lambda x, table: x + table[-x.shape[1] :],
        ),
        Mistake(
            "positions from 1",
            "The first word stands at position 0.",
            lambda x, table: x + table[1 : x.shape[1] + 1],
        ),
        Mistake(
            "in reverse",
            "The rows are added from the last word to the first.",
            lambda x, table: x + table[: x.shape[1]][::-1],
        ),
        Mistake(
            "multiplied",
            "The positions are added.",
            lambda x, table: x * table[: x.shape[1]],
        ),
        Mistake(
            "the words are gone",
            "These are the positions alone; they are added to x.",
            lambda x, table: 0 * x + table[: x.shape[1]],
        ),
        Mistake(
            "added twice",
            "Each row is added once.",
            lambda x, table: x + 2 * table[: x.shape[1]],
        ),
        Mistake(
            "side by side",
            "The positions are added to the features; the width stays.",
            lambda x, table: np.concatenate(
                (x, np.broadcast_to(table[: x.shape[1]], x.shape)), axis=-1
            ),
        ),
    ),
    hints=(
        "Which axis of x counts the positions, and which the samples?",
        "The rows that are needed: as many as x has words, x.shape[1].",
        "(batch, L, E) + (L, E) adds the same table to every sample. No new axis is needed.",
    ),
)

# ---------------------------------------------------------------------------- layer_norm


def _norm(x, gain, bias, eps, *, axis=-1, correction=0, center=True):
    """The norm with one choice for each step that can go wrong."""
    mean = x.mean(axis=axis, keepdims=True) if center else 0.0
    variance = ((x - mean) ** 2).mean(axis=axis, keepdims=True)
    if correction:
        size = x.shape[axis]
        variance = variance * size / (size - 1)
    with np.errstate(all="ignore"):  # without eps, equal features are 0 / 0
        return gain * (x - mean) / np.sqrt(variance + eps) + bias


def _steps(mean=True, var=True, summed=(), brackets="all"):
    """The norm written with means that keep their axis or not, sums, and other brackets."""

    def norm(x, gain, bias, eps):
        m, v = x.mean(axis=-1, keepdims=mean), x.var(axis=-1, keepdims=var)
        m = m * x.shape[-1] if "mean" in summed else m
        root = np.sqrt((v * x.shape[-1] if "squares" in summed else v) + eps)
        if brackets == "all":
            return gain * (x - m) / root + bias
        return (gain * x - m / root if brackets == "none" else gain * (x - m / root)) + bias

    return norm


def _divided(x, gain, bias, root, centre=None):
    """The norm with another divisor, or with something else taken off."""
    centre = x.mean(axis=-1, keepdims=True) if centre is None else centre
    with np.errstate(all="ignore"):
        return gain * (x - centre) / root + bias


def _by_len(x, gain, bias, eps, both):
    mean = x.sum(axis=-1, keepdims=True) / (len(x) if both else x.shape[-1])
    variance = ((x - mean) ** 2).sum(axis=-1, keepdims=True) / len(x)
    return _divided(x, gain, bias, np.sqrt(variance + eps), mean)


def _norm_cases():
    rng = np.random.default_rng(32)
    sizes = {
        (3,): "one vector",
        (2, 3): "two words",
        (4, 4): "as many words as features",
        (2, 3, 4): "a batch",
        (3, 2, 5): "another batch",
        (1, 4, 6): "one sample",
        (2, 1, 3): "one word each",
    }
    for number, (shape, label) in enumerate(sizes.items()):
        x = (2 + 3 * rng.normal(size=shape)).round(2)
        gain, bias = rng.normal(size=(2, shape[-1])).round(2)
        yield Case(label, x, gain, bias, (0.1, 0.5, 1.0)[number % 3])
    yield Case("equal features", np.full((2, 3), 1.5), np.array([1.0, 2, 3]), np.zeros(3), 0.5)


layer_norm = WriteFunction(
    level=2,
    trains="which axis is normalised, and how",
    reference=lambda x, gain, bias, eps: _norm(x, gain, bias, eps),
    cases=tuple(_norm_cases()),
    mistakes=(
        Mistake(
            "one mean for everything",
            "Each word has its own mean and variance: axis=-1 with keepdims=True.",
            lambda x, gain, bias, eps: gain * (x - x.mean()) / np.sqrt(x.var() + eps) + bias,
        ),
        Mistake(
            "over the first axis",
            "That mixes samples, as a batch norm does. The mean runs over the features, the last "
            "axis.",
            lambda x, gain, bias, eps: _norm(x, gain, bias, eps, axis=0),
            lambda x, gain, bias, eps: _norm(x, gain, bias, eps, axis=tuple(range(x.ndim - 1))),
        ),
        Mistake(
            "one mean for each sample",
            "That mixes the words of a sample. Each word has its own mean and variance: axis=-1.",
            lambda x, gain, bias, eps: _norm(x, gain, bias, eps, axis=tuple(range(1, x.ndim))),
            lambda x, gain, bias, eps: _norm(x, gain, bias, eps, axis=(-2, -1)),
        ),
        Mistake(
            "not the last axis for every shape",
            "x may have one axis, two or more, and the features are the last one: axis=-1 with "
            "keepdims=True serves them all. Code that names three axes does not.",
            lambda x, gain, bias, eps: _norm(x, gain, bias, eps, axis=1),
            lambda x, gain, bias, eps: _norm(x, gain, bias, eps, axis=-2),
            lambda x, gain, bias, eps: _norm(x, gain, bias, eps, axis=2),
        ),
        Mistake(
            "axis not kept",
            "Without keepdims=True a mean over the last axis loses that axis, and no longer fits "
            "beside x.",
            _steps(mean=False, var=False),
            _steps(mean=False),
            _steps(var=False),
        ),
        Mistake(
            "mean not taken off",
            "The mean is subtracted, above the line as well as in the variance.",
            lambda x, gain, bias, eps: _norm(x, gain, bias, eps, center=False),
            lambda x, gain, bias, eps: (
                gain * x / np.sqrt(x.var(axis=-1, keepdims=True) + eps) + bias
            ),
        ),
        Mistake(
            "divided by one less",
            "The variance is the plain mean of the squares, as NumPy's var gives it; a correction "
            "for small samples is not wanted.",
            lambda x, gain, bias, eps: _norm(x, gain, bias, eps, correction=1),
        ),
        Mistake(
            "eps outside the root",
            "eps is added to the variance, before the root.",
            lambda x, gain, bias, eps: (
                gain * (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + eps) + bias
            ),
        ),
        Mistake(
            "eps outside the root, and divided by one less",
            "eps is added to the variance, before the root; and the variance is the plain mean of "
            "the squares (PyTorch's std divides by one less unless told otherwise).",
            lambda x, gain, bias, eps: _divided(
                x, gain, bias, x.std(-1, keepdims=True, ddof=1) + eps
            ),
        ),
        Mistake(
            "eps above the line",
            "eps is added to the variance alone, below the line.",
            lambda x, gain, bias, eps: _norm(x, gain, bias + eps * gain, 0.0),
            lambda x, gain, bias, eps: _norm(x, gain, bias + eps, 0.0),
            lambda x, gain, bias, eps: _divided(
                x, gain, bias, x.std(-1, keepdims=True), centre=x.mean(-1, keepdims=True) - eps
            ),
        ),
        Mistake(
            "the larger of variance and eps",
            "eps is added to the variance.",
            lambda x, gain, bias, eps: _divided(
                x, gain, bias, np.sqrt(np.maximum(x.var(-1, keepdims=True), eps))
            ),
        ),
        Mistake(
            "half of it, not its root",
            "v ** 1 / 2 is v / 2. The root is v ** 0.5, or np.sqrt(v).",
            lambda x, gain, bias, eps: _divided(
                x, gain, bias, (x.var(-1, keepdims=True) + eps) / 2
            ),
        ),
        Mistake(
            "two roots",
            "std is the root of the variance already, and eps belongs under the root: take var.",
            lambda x, gain, bias, eps: _divided(
                x, gain, bias, np.sqrt(x.std(-1, keepdims=True) + eps)
            ),
        ),
        Mistake(
            "multiplied by the root",
            "Divide by the root: the features then have a length of about the root of E.",
            lambda x, gain, bias, eps: _divided(
                x, gain, bias, 1 / np.sqrt(x.var(-1, keepdims=True) + eps)
            ),
        ),
        Mistake(
            "the mean of the squares of x",
            "The variance is the mean of the squared differences from the mean.",
            lambda x, gain, bias, eps: _divided(
                x, gain, bias, np.sqrt((x * x).mean(-1, keepdims=True) + eps)
            ),
        ),
        Mistake(
            "one variance for everything",
            "Each word has its own variance, like its own mean: axis=-1 with keepdims=True.",
            lambda x, gain, bias, eps: _divided(x, gain, bias, np.sqrt(x.var() + eps)),
        ),
        Mistake(
            "no eps",
            "Without eps a vector of equal features divides by 0.",
            lambda x, gain, bias, eps: _norm(x, gain, bias, 0.0),
        ),
        Mistake(
            "a fixed eps",
            "eps is an argument: use the number that is given.",
            lambda x, gain, bias, eps: _norm(x, gain, bias, 1e-5),
        ),
        Mistake(
            "eps squared",
            "eps itself is added to the variance, not its square.",
            lambda x, gain, bias, eps: _norm(x, gain, bias, eps**2),
        ),
        Mistake(
            "only the mean divided",
            "The difference x - mean is divided as a whole: it needs brackets.",
            _steps(brackets="none"),
            _steps(brackets="gain"),
        ),
        Mistake(
            "a sum in place of a mean",
            "Both are means over the features: of x, and of the squared differences.",
            _steps(summed=("squares",)),
            _steps(summed=("mean",)),
            _steps(summed=("mean", "squares")),
        ),
        Mistake(
            "divided by len(x)",
            "len(x) is the size of the first axis. The features are counted by x.shape[-1].",
            lambda x, gain, bias, eps: _by_len(x, gain, bias, eps, both=False),
            lambda x, gain, bias, eps: _by_len(x, gain, bias, eps, both=True),
        ),
        Mistake(
            "no root",
            "Divide by the root of the variance.",
            lambda x, gain, bias, eps: (
                gain * (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + eps) + bias
            ),
        ),
        Mistake(
            "gain and bias left out",
            "The normed features are scaled by gain and shifted by bias.",
            lambda x, gain, bias, eps: _norm(x, 1.0, 0.0, eps),
        ),
        Mistake(
            "gain left out",
            "The normed features are multiplied by gain before the bias is added.",
            lambda x, gain, bias, eps: _norm(x, 1.0, bias, eps),
        ),
        Mistake(
            "bias left out",
            "The bias is added at the end.",
            lambda x, gain, bias, eps: _norm(x, gain, 0.0, eps),
        ),
        Mistake(
            "bias scaled too",
            "First the gain, then the bias: the bias is not multiplied.",
            lambda x, gain, bias, eps: gain * _norm(x, 1.0, bias, eps),
        ),
        Mistake(
            "bias divided too",
            "The bias is added at the end, to the normed features.",
            lambda x, gain, bias, eps: (
                _divided(x, gain, 0.0, root := np.sqrt(x.var(-1, keepdims=True) + eps))
                + bias / root
            ),
        ),
        Mistake(
            "bias subtracted",
            "The bias is added.",
            lambda x, gain, bias, eps: _norm(x, gain, -bias, eps),
        ),
        Mistake(
            "divided by the gain",
            "gain multiplies.",
            lambda x, gain, bias, eps: _norm(x, 1 / gain, bias, eps),
        ),
        Mistake(
            "gain and bias swapped",
            "gain multiplies, bias is added.",
            lambda x, gain, bias, eps: _norm(x, bias, gain, eps),
        ),
    ),
    hints=(
        "x.mean(axis=-1, keepdims=True) has one number for each word, ready to be subtracted.",
        "x.var(axis=-1, keepdims=True) is the variance; add eps, then np.sqrt.",
        "Return gain * (x - mean) / np.sqrt(variance + eps) + bias.",
    ),
)

# ---------------------------------------------------------------------------- rotary_test


def _turn(
    x, *, base=10000.0, start=0, sign=1.0, exponent=lambda columns, d: columns / d,
    position=lambda p: p, halves=False, mirror=False,
):  # fmt: skip
    x = np.asarray(x, dtype=float)
    length, d = x.shape
    positions = position(np.arange(start, start + length, dtype=float))[:, None]
    angles = sign * positions / base ** exponent(np.arange(0, d, 2), d)
    first, second = (x[:, : d // 2], x[:, d // 2 :]) if halves else (x[:, 0::2], x[:, 1::2])
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = first * cos - second * sin, first * sin + second * cos
    if mirror:
        a, b = first * cos + second * sin, first * sin - second * cos
    if halves:
        return np.concatenate((a, b), axis=1)
    return np.stack((a, b), axis=-1).reshape(length, d)


def _by_complex_numbers(x):
    x = np.asarray(x, dtype=float)
    length, d = x.shape
    points = x[:, 0::2] + 1j * x[:, 1::2]
    points = points * np.exp(1j * np.arange(length)[:, None] / 10000 ** (np.arange(0, d, 2) / d))
    return np.stack((points.real, points.imag), axis=-1).reshape(length, d)


def _by_matrices(x):
    x = np.asarray(x, dtype=float)
    result = np.empty_like(x)
    for p, i in np.ndindex(len(x), x.shape[1] // 2):
        angle = p / 10000 ** (2 * i / x.shape[1])
        c, s = np.cos(angle), np.sin(angle)
        result[p, 2 * i : 2 * i + 2] = np.array([[c, -s], [s, c]]) @ x[p, 2 * i : 2 * i + 2]
    return result


def _overwrites(x):
    """The classic slip: the first feature is written, and read again for the second."""
    result = np.array(x, dtype=float)
    angles = np.arange(len(x))[:, None] / 10000 ** (np.arange(0, x.shape[1], 2) / x.shape[1])
    result[:, 0::2] = result[:, 0::2] * np.cos(angles) - result[:, 1::2] * np.sin(angles)
    result[:, 1::2] = result[:, 0::2] * np.sin(angles) + result[:, 1::2] * np.cos(angles)
    return result


def _turned_at(rows=slice(None), columns=slice(None)):
    """Turns these rows and columns alone."""

    def rotate(x):
        turned, result = _turn(x), np.array(x, dtype=float)
        result[rows, columns] = turned[rows, columns]
        return result

    return rotate


def _angle_of_each_feature(x):
    x = np.asarray(x, dtype=float)
    angles = np.arange(len(x))[:, None] / 10000 ** (np.arange(x.shape[1]) / x.shape[1])
    partner = np.stack((-x[:, 1::2], x[:, 0::2]), axis=-1).reshape(x.shape)
    return x * np.cos(angles) + partner * np.sin(angles)


def _one_sign_wrong(x):
    turned, back = _turn(x), _turn(x, sign=-1.0)
    return np.stack((turned[:, 0::2], back[:, 1::2]), axis=-1).reshape(x.shape)


def _up_to_one(positions):
    return np.minimum(positions, 1.0)


def _in_halves(x):
    half = x.shape[1] // 2
    return np.stack((x[:, :half], x[:, half:]), axis=-1).reshape(x.shape)


def _first_pair(x):
    return np.tile(x[:, :2], (1, x.shape[1] // 2))


def _halves_in_the_result(x):
    turned = _turn(x)
    return np.concatenate((turned[:, 0::2], turned[:, 1::2]), axis=1)


def _compares(look=lambda y: y, length=4, width=6, make=None):
    """A test that looks at one input."""

    def test(rotate):
        x = np.random.default_rng(33).normal(size=(length, width)) if make is None else make
        np.testing.assert_allclose(look(np.asarray(rotate(x))), look(_turn(x)), atol=1e-9)

    return test


def _distances_only(rotate):
    """Scores of the same vector at all places depend on the distance."""
    x = np.tile(np.array([1.0, 2, 3, 4, 5, 6]), (5, 1))
    turned = np.asarray(rotate(x))
    scores = turned @ turned.T
    for distance in range(5):
        diagonal = np.diagonal(scores, distance)
        np.testing.assert_allclose(diagonal, diagonal[0] + 0 * diagonal)


def _lengths(y):
    return np.linalg.norm(y, axis=-1)


PAIRS = (
    "Compare all pairs of a width above 2, with a small tolerance: pairs, halves and frequencies "
    "look alike otherwise."
)
PLACES = "Compare the numbers at several positions, the last one too."
BOTH = "Compare both features of each pair, and absolute differences; for `or` one is enough."
DIFFERENT = "Take numbers that are all different, in each row, each pair and each half."
ROWS = "Compare every row, and how many there are."

rotary_test = CatchFaults(
    level=3,
    trains="a test for properties of a rotation",
    right={
        "sines and cosines": _turn,
        "complex numbers": _by_complex_numbers,
        "one small matrix after the other": _by_matrices,
    },
    faults=(
        Mistake("nothing turned", PLACES, lambda x: np.array(x, dtype=float)),
        Mistake("turned the other way", PLACES, lambda x: _turn(x, sign=-1.0)),
        Mistake("halves in place of neighbours", PAIRS, lambda x: _turn(x, halves=True)),
        Mistake(
            "the same angle for all pairs", PAIRS, lambda x: _turn(x, exponent=lambda c, d: 0.0 * c)
        ),
        Mistake(
            "exponent i / d in place of 2i / d",
            PAIRS,
            lambda x: _turn(x, exponent=lambda c, d: c / 2 / d),
        ),
        Mistake("only the first pair turned", PAIRS, _turned_at(columns=slice(2))),
        Mistake("the last pair left alone", PAIRS, _turned_at(columns=slice(-2))),
        Mistake(
            "the last pair's angle for all pairs",
            PAIRS,
            lambda x: _turn(x, exponent=lambda c, d: 0 * c + (d - 2) / d),
        ),
        Mistake("the second of each pair left alone", BOTH, _turned_at(columns=slice(0, None, 2))),
        Mistake("the first of each pair left alone", BOTH, _turned_at(columns=slice(1, None, 2))),
        Mistake("the turned feature used for the second", BOTH, _overwrites),
        Mistake(
            "halves in the result",
            "Compare number by number with the result itself: sums, sorted lists and scores do not "
            "see all of it.",
            _halves_in_the_result,
        ),
        Mistake(
            "all signs changed",
            "Compare the numbers themselves: an absolute value or a square has lost the sign.",
            lambda x: -_turn(x),
        ),
        Mistake("positions from 1", PLACES, lambda x: _turn(x, start=1)),
        Mistake(
            "all positions turned alike", PLACES, lambda x: _turn(x, position=lambda p: 0 * p + 1)
        ),
        Mistake(
            "all positions turned like the last",
            PLACES,
            lambda x: _turn(x, position=lambda p: 0 * p + len(p) - 1),
        ),
        Mistake("the last position left alone", PLACES, _turned_at(rows=slice(-1))),
        Mistake(
            "mirrored in place of turned",
            "Compare both features of each pair. From (1, 0) a turn and a mirror look alike, so "
            "start from other numbers.",
            lambda x: _turn(x, mirror=True),
        ),
        Mistake(
            "one sign wrong",
            "From (0, 1) one of the two features does not show the sign of the sine: start from "
            "other numbers, and compare both.",
            _one_sign_wrong,
        ),
        Mistake("no further than position 1", PLACES, lambda x: _turn(x, position=_up_to_one)),
        Mistake("halves read as pairs", DIFFERENT, lambda x: _turn(_in_halves(x))),
        Mistake("the first pair read for all", DIFFERENT, lambda x: _turn(_first_pair(x))),
        Mistake("row 0 read for all", DIFFERENT, lambda x: _turn(np.asarray(x)[:1] + 0 * x)),
        Mistake(
            "the number of positions in place of d",
            "Take another number of positions than of features.",
            lambda x: _turn(x, exponent=lambda c, d: c / len(x)),
        ),
        Mistake(
            "lengths changed",
            "Compare the numbers themselves: an angle or a correlation has lost the length.",
            lambda x: _turn(x) * x.shape[1] ** 0.5,
        ),
        Mistake("row 0 left empty", ROWS, lambda x: _turn(x) * (np.arange(len(x)) > 0)[:, None]),
        Mistake("the last row lost", ROWS, lambda x: _turn(x)[:-1]),
    ),
    nearly=(
        Mistake(
            "x itself",
            "It rejects all right versions and accepts one that gives x back. Was x changed before "
            "rotate got it? (w = x makes no copy, w = x.copy() does.) Or is a column compared "
            "where a row is meant?",
            lambda x: np.array(x, dtype=float),
        ),
        Mistake(
            "whole numbers",
            "It rejects all right versions: what it expects has no digits after the point. An "
            "array made from an x of integers keeps integers only.",
            lambda x: _turn(x).astype(int),
        ),
        Mistake(
            "degrees",
            "It rejects all right versions: what it expects was turned by degrees. The angle "
            "p / 10000 ** (2i / d) is in radians, as np.cos takes it.",
            lambda x: _turn(x, position=np.degrees),
        ),
        Mistake(
            "the exponent doubled",
            "It rejects all right versions: what it expects has the exponent 4i / d. 2i is the "
            "even column already.",
            lambda x: _turn(x, exponent=lambda c, d: 2 * c / d),
        ),
        Mistake(
            "an angle for each column",
            "It rejects all right versions: the two features of a pair share one angle.",
            _angle_of_each_feature,
        ),
    ),
    mistakes=(
        Mistake(
            "only what every fault keeps too",
            "The shape, the lengths, zeros, and scores that depend on the distance alone: wrong "
            "turns keep them as well. Compare the numbers of the result.",
            _compares(look=_lengths),
            _compares(look=np.shape),
            _compares(make=np.zeros((4, 6))),
            _distances_only,
        ),
        Mistake(
            "position 0 only",
            "At position 0 nothing turns. " + PLACES,
            _compares(look=lambda y: y[0]),
            _compares(length=1),
        ),
        Mistake("one pair only", PAIRS, _compares(width=2), _compares(look=lambda y: y[:, :2])),
        Mistake(
            "position 1 only",
            "One position cannot tell a turn that grows with the position from one that does not.",
            _compares(look=lambda y: y[1]),
        ),
        Mistake(
            "first features only",
            "The cosine part of a pair is compared only where the second feature is 0, or not at "
            "all. Compare both features of each pair.",
            _compares(make=np.tile([1.0, 0.0], (4, 3)), look=lambda y: y[:, 0::2]),
        ),
    ),
    hints=(
        "Take at least three positions and a width of 6, with numbers that are all different, and "
        "compare every number of the result.",
        "Work out what must come: pair i at position p, as a complex number, times "
        "exp(1j * p / 10000 ** (2 * i / d)).",
        "Two loops, over positions and pairs, and np.allclose for each pair.",
    ),
)

EXERCISES = {
    "feedforward_parameters": feedforward_parameters,
    "waves": waves,
    "add_positions": add_positions,
    "layer_norm": layer_norm,
    "rotary_test": rotary_test,
}
