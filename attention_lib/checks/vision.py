"""The exercises of chapter 11, vision: references, cases, known mistakes, hints."""

from functools import partial

import numpy as np

from attention_lib.checks.engine import Case, CatchFaults, Mistake, PredictValue, WriteFunction

# ---------------------------------------------------------------------------- patch_tokens

HEIGHT, WIDTH, CHANNELS, SIDE = 12, 20, 3, 4
ROWS, COLUMNS = HEIGHT // SIDE, WIDTH // SIDE
FEATURES = CHANNELS * SIDE**2

patch_tokens = PredictValue(
    level=1,
    trains="counting patches and their numbers",
    answer=lambda: (1 + ROWS * COLUMNS, FEATURES),
    mistakes=(
        Mistake(
            "class token forgotten",
            "The patches are counted right. One more token comes before them.",
            (ROWS * COLUMNS, FEATURES),
        ),
        Mistake(
            "channels forgotten",
            "A pixel of a colour image is three numbers, and a patch holds all of them.",
            (1 + ROWS * COLUMNS, SIDE**2),
        ),
        Mistake(
            "class token and channels forgotten",
            "These are the patches of a grey image. Add the class token and the colours.",
            (ROWS * COLUMNS, SIDE**2),
        ),
        Mistake(
            "patches of each channel counted apart",
            "The channels do not make more patches. They make each patch wider.",
            (1 + CHANNELS * ROWS * COLUMNS, SIDE**2),
            (CHANNELS * ROWS * COLUMNS, SIDE**2),
        ),
        Mistake(
            "rows and columns added",
            "The grid has 3 rows of 5 patches. How many patches are that?",
            (1 + ROWS + COLUMNS, FEATURES),
            (ROWS + COLUMNS, FEATURES),
        ),
        Mistake(
            "pixels taken for patches",
            "Every pixel became a token here. A patch is a square of 4 by 4 pixels.",
            *(
                (tokens, numbers)
                for tokens in (1 + HEIGHT * WIDTH, HEIGHT * WIDTH)
                for numbers in (CHANNELS, FEATURES, SIDE**2)
            ),
        ),
        Mistake(
            "the numbers of one pixel",
            "These are the colours of one pixel. A patch has 4 by 4 pixels.",
            (1 + ROWS * COLUMNS, CHANNELS),
            (ROWS * COLUMNS, CHANNELS),
        ),
        Mistake(
            "patches of 4 pixels",
            "4 is the side of a patch, so it has 16 pixels.",
            (1 + HEIGHT * WIDTH // SIDE, CHANNELS * SIDE),
            (HEIGHT * WIDTH // SIDE, CHANNELS * SIDE),
            (1 + ROWS * COLUMNS, CHANNELS * SIDE),
            (ROWS * COLUMNS, CHANNELS * SIDE),
        ),
        Mistake(
            "the two numbers swapped",
            "First the number of tokens, then the width of a patch.",
            (FEATURES, 1 + ROWS * COLUMNS),
        ),
    ),
    hints=(
        "How many patches are there from top to bottom, and how many from left to right?",
        "A patch has 4 by 4 pixels, and each pixel three numbers.",
        "Do not forget the class token in the first number.",
    ),
)

# ---------------------------------------------------------------------------- patch_fault

# images, rows of patches, columns of patches, side of a patch
SIZES = {
    (1, 1, 1, 2): "a single patch",
    (1, 1, 2, 2): "two patches side by side",
    (1, 2, 1, 2): "one patch above the other",
    (1, 2, 2, 2): "all sizes equal but the batch",
    (2, 2, 2, 2): "all sizes equal",
    (2, 3, 2, 1): "patches of one pixel",
    (1, 2, 3, 2): "a wide image",
    (2, 3, 2, 2): "a high image",
    (3, 2, 4, 3): "all sizes different",
}


def _numbers(*shape):
    """Different numbers in a mixed order, none of them whole."""
    rng = np.random.default_rng(11)
    return rng.permutation(np.arange(np.prod(shape)) / 2 + 0.25).reshape(shape)


def _axes(images, side):
    """The images with axes (image, row, row inside, column, column inside)."""
    batch, height, width = images.shape
    return images.reshape(batch, height // side, side, width // side, side)


def _patchify(images, side):
    cut = _axes(images, side)
    return cut.transpose(0, 1, 3, 2, 4).reshape(len(images), -1, side**2)


def _moved(*order):
    """Patches with the axes in another order."""

    def patchify(images, side):
        return _axes(images, side).transpose(order).reshape(len(images), -1, side**2)

    return patchify


def _every_other(images, side):
    batch, height, width = images.shape
    cut = images.reshape(batch, side, height // side, side, width // side)
    return cut.transpose(0, 2, 4, 1, 3).reshape(batch, -1, side**2)


def _one_axis_turned(cut, order):
    """One axis of the images cut into (inside, which patch)."""

    def patchify(images, side):
        batch, height, width = images.shape
        sizes = {"r": height // side, "c": width // side, "p": side}
        parts = images.reshape(batch, *(sizes[letter] for letter in cut))
        return parts.transpose(order).reshape(batch, -1, side**2)

    return patchify


def _flat(images, side):
    return images.reshape(len(images), -1, side**2)


def _turned_first(images, side):
    return _flat(images.swapaxes(1, 2), side)


def _even(images):
    """Without the last row or column, if their number is odd."""
    height, width = (size // 2 * 2 for size in images.shape[1:])
    return images[:, :height, :width]


def _sliding(images, side):
    windows = np.lib.stride_tricks.sliding_window_view(images, (side, side), axis=(1, 2))
    return windows.reshape(len(images), -1, side**2)


def _grid_kept(images, side):
    cut = _axes(images, side).transpose(0, 1, 3, 2, 4)
    return cut.reshape(*cut.shape[:3], side**2)


def _squares_kept(images, side):
    return _patchify(images, side).reshape(len(images), -1, side, side)


patch_fault = WriteFunction(
    level=2,
    trains="cutting an image with reshape and transpose",
    reference=lambda images, patch_size: _patchify(images, patch_size),
    cases=(
        *(
            Case(label, _numbers(batch, rows * side, columns * side), side)
            for (batch, rows, columns, side), label in SIZES.items()
        ),
        Case("float32", _numbers(2, 4, 6).astype(np.float32), 2),
    ),
    mistakes=(
        Mistake(
            "the fault is still there: reshaped at once",
            "A reshape keeps the reading order, so a patch gets pixels that lie in one row. Cut "
            "height and width, each into two axes, and move them before you join any.",
            _flat,
        ),
        Mistake(
            "pixels of a patch column by column",
            "The patches are right, but inside each one the pixels come column by column.",
            _moved(0, 1, 3, 4, 2),
        ),
        Mistake(
            "patches column by column",
            "Inside a patch all is right. The patches come column by column; they go row by row.",
            _moved(0, 3, 1, 2, 4),
        ),
        Mistake(
            "everything column by column",
            "The image is turned: rows and columns are swapped for patches and pixels alike.",
            _moved(0, 3, 1, 4, 2),
        ),
        Mistake(
            "pixels that are not neighbours",
            "Each patch takes every second or third pixel from the whole image. In the cut, the "
            "number of patches comes first, then the side of a patch.",
            _every_other,
        ),
        Mistake(
            "one axis cut the other way round",
            "Height and width are not cut alike. In both cuts the number of patches comes first, "
            "then the side of a patch.",
            _one_axis_turned("prcp", (0, 2, 3, 1, 4)),
            _one_axis_turned("rppc", (0, 1, 4, 2, 3)),
            _one_axis_turned("prcp", (0, 1, 3, 2, 4)),
            _one_axis_turned("rppc", (0, 1, 3, 2, 4)),
        ),
        Mistake(
            "turned, then reshaped",
            "After a swap of height and width the reading order is another one, but a patch is "
            "still a piece of a line. Cut both axes first.",
            _turned_first,
        ),
        Mistake(
            "patches that overlap",
            "A patch begins at every pixel here. The next patch begins where the last one ends.",
            _sliding,
        ),
        Mistake(
            "grid not joined",
            "The patches keep two axes, for row and column. Join them: (b, patches, pixels).",
            _grid_kept,
        ),
        Mistake(
            "pixels not joined",
            "Each patch is still a square. Make one vector of it: (b, patches, pixels).",
            _squares_kept,
        ),
        Mistake(
            "patches in reverse",
            "The first patch is the one at the top left.",
            lambda images, side: _patchify(images, side)[:, ::-1],
        ),
        Mistake(
            "columns counted from the height",
            "All is right in square images. The number of columns comes from the width.",
            lambda images, side: _columns_from_height(images, side),
        ),
        Mistake(
            "patch_size ignored",
            "The squares have 2 by 2 pixels, whatever patch_size is.",
            lambda images, side: _patchify(images, 2),
            lambda images, side: _patchify(_even(images), 2),
        ),
    ),
    hints=(
        "Height becomes two axes: which patch, and which row inside it. Width in the same way.",
        "reshape(batch, rows, side, columns, side), then bring the two grid axes together. NumPy's "
        "transpose takes all axes; swapaxes takes two.",
        "transpose(0, 1, 3, 2, 4) gives (batch, rows, columns, side, side); then join twice.",
    ),
)

# ---------------------------------------------------------------------------- erase


def _maps():
    rng = np.random.default_rng(12)
    sizes = {
        (1, 2, 2, 2, 1): "one patch of four",
        (1, 2, 2, 2, 2): "two patches of four",
        (2, 2, 3, 2, 1): "two images",
        (1, 2, 3, 2, 2): "a wide image",
        (2, 3, 2, 1, 4): "patches of one pixel",
        (3, 2, 4, 3, 3): "all sizes different",
        (2, 4, 4, 2, 4): "the chapter's sizes",
    }
    for (batch, rows, columns, side, count), label in sizes.items():
        images = _numbers(batch, rows * side, columns * side)
        # no two weights are equal, and a message shows all their digits
        weights = rng.permutation(np.arange(batch * rows * columns) + 1.0) / 64
        yield Case(label, images, weights.reshape(batch, -1), side, count)
    images, weights = _numbers(2, 4, 4), np.array([[5.0, 1, 4, 2], [8, 3, 7, 6]]) / 16
    yield Case("float32", images.astype(np.float32), weights.astype(np.float32), 2, 2)
    yield Case("no patch", images, weights, 2, 0)
    signs = np.array([[-5.0, 1, 4, -2], [3, -8, -7, 6]]) / 16
    yield Case("weights below 0", images, signs, 2, 2)
    yield Case("weights below -1", images, -2 - weights, 2, 3)


def _with(images, chosen, side, erase=True):
    """The images without the chosen patches (b, patches), or with nothing else."""
    batch, height, width = images.shape
    grid = chosen.reshape(batch, height // side, width // side)
    over = np.repeat(np.repeat(grid, side, axis=1), side, axis=2)
    return np.where(over == erase, 0, images).astype(images.dtype)


def _top(weights, count):
    """True at the `count` largest weights of each row."""
    ranks = np.argsort(np.argsort(-weights, axis=1), axis=1)
    return ranks < count


def _erase(images, weights, side, count):
    return _with(images, _top(weights, count), side)


def _by_columns(images, weights, side, count):
    """Numbers the patches column by column."""
    batch, height, width = images.shape
    chosen = _top(weights, count).reshape(batch, width // side, height // side)
    return _with(images, chosen.swapaxes(1, 2).reshape(batch, -1), side)


def _square_by_square(order, corner):
    """Erases squares; `order(weights)` sorts the patches, `corner` places a square in pixels."""

    def erase(images, weights, side, count):
        result = images.copy()
        for n, chosen in enumerate(order(weights)):
            for i in chosen[:count]:
                top, left = corner(i, side, *(size // side for size in images.shape[1:]))
                result[n, top : top + side, left : left + side] = 0
        return result

    return erase


def _falling(weights):
    return np.argsort(-weights, axis=1)


def _right_corner(i, side, rows, columns):
    return i // columns * side, i % columns * side


def _for_all(decide):
    """One row of weights, made by `decide`, for the whole batch."""

    def erase(images, weights, side, count):
        return _erase(images, np.repeat(decide(weights)[None], len(weights), axis=0), side, count)

    return erase


def _first_pixel(images, weights, side, count):
    erased = _erase(images, weights, side, count)
    result = images.copy()
    result[:, ::side, ::side] = erased[:, ::side, ::side]
    return result


def _taken_set_to(number):
    """The largest weight again and again, each taken one set to a number."""

    def erase(images, weights, side, count):
        chosen, left = np.zeros(weights.shape, dtype=bool), np.array(weights)
        for _ in range(count):
            largest = left.argmax(axis=1)[:, None]
            np.put_along_axis(chosen, largest, True, axis=1)
            np.put_along_axis(left, largest, number, axis=1)
        return _with(images, chosen, side)

    return erase


def _strips(images, weights, side, count):
    """Erases patches of an image that was reshaped at once."""
    patches = images.reshape(*weights.shape, side**2)
    return (
        np.where(_top(weights, count)[..., None], 0, patches)
        .astype(images.dtype)
        .reshape(images.shape)
    )


def _largest_of_all(images, weights, side, count):
    ranks = np.argsort(np.argsort(-weights, axis=None)).reshape(weights.shape)
    return _with(images, ranks < count, side)


erase = WriteFunction(
    level=3,
    trains="from the number of a patch to its pixels",
    reference=lambda images, weights, patch_size, count: _erase(images, weights, patch_size, count),
    cases=tuple(_maps()),
    mistakes=(
        Mistake(
            "the smallest weights erased",
            "np.argsort goes from small to large. The largest weights stand at its end.",
            lambda images, weights, side, count: _erase(images, -weights, side, count),
        ),
        Mistake(
            "the others erased",
            "What should go has stayed, and what should stay has gone.",
            lambda images, weights, side, count: _with(
                images, _top(weights, count), side, erase=False
            ),
        ),
        Mistake(
            "only one patch erased",
            "The largest weight alone was looked for. count patches go.",
            lambda images, weights, side, count: _erase(images, weights, side, min(count, 1)),
            lambda images, weights, side, count: _erase(images, weights, side, 1),
        ),
        Mistake(
            "one patch too many",
            "count patches go, not count + 1.",
            lambda images, weights, side, count: _erase(images, weights, side, count + 1),
        ),
        Mistake(
            "the first image decides for all",
            "Each image has weights of its own, and loses its own patches.",
            _for_all(lambda weights: weights[0]),
        ),
        Mistake(
            "the mean weights decide for all",
            "The weights of all images were joined. Each image loses its own patches.",
            _for_all(lambda weights: weights.mean(axis=0)),
        ),
        Mistake(
            "sorted along the images",
            "Axis 0 counts the images. Sort the patches of each image: axis 1.",
            _square_by_square(lambda weights: np.argsort(-weights, axis=0), _right_corner),
            _square_by_square(lambda weights: np.argsort(weights, axis=0)[:, ::-1], _right_corner),
        ),
        Mistake(
            "everything erased for count 0",
            "Only count 0 fails. Counted from the end, the last 0 are all of them: -0 is 0.",
            lambda images, weights, side, count: _erase(
                images, weights, side, count or weights.shape[1]
            ),
        ),
        Mistake(
            "sign of the weights left out",
            "A weight below 0 is smaller than any above 0, however far from 0 it lies.",
            lambda images, weights, side, count: _erase(images, abs(weights), side, count),
        ),
        Mistake(
            "a taken weight set to 0 or -1",
            "Where all weights are smaller still, the patch that was taken is the largest again, "
            "and goes twice. Set its weight to -np.inf.",
            _taken_set_to(0),
            _taken_set_to(-1),
        ),
        Mistake(
            "strips in place of squares",
            "The image was reshaped at once, so a patch is a piece of a line. It is a square: "
            "exercise 11.2.",
            _strips,
        ),
        Mistake(
            "squares one pixel apart",
            "Row and column of the grid count patches. In pixels they are patch_size times as "
            "large.",
            _square_by_square(_falling, lambda i, side, rows, columns: divmod(i, columns)),
        ),
        Mistake(
            "columns counted from the height",
            "The number of columns in the grid comes from the width of the image.",
            _square_by_square(
                _falling, lambda i, side, rows, columns: _right_corner(i, side, columns, rows)
            ),
        ),
        Mistake(
            "the largest of all images together",
            "count patches of every image go. The sort ran over all images at once.",
            _largest_of_all,
        ),
        Mistake(
            "one pixel of each patch erased",
            "A patch is a square of patch_size by patch_size pixels. All of them become 0.",
            _first_pixel,
        ),
        Mistake(
            "patches numbered column by column",
            "Patch i stands in row i // columns and column i % columns of the grid.",
            _by_columns,
        ),
        Mistake(
            "multiplied by the weights",
            "The pixels were made darker or lighter by their weight. Erased pixels are 0, all "
            "others stay as they are.",
            lambda images, weights, side, count: (
                images
                * np.repeat(
                    np.repeat(
                        weights.reshape(len(images), images.shape[1] // side, -1), side, axis=1
                    ),
                    side,
                    axis=2,
                )
            ),
        ),
        Mistake(
            "filled with 1",
            "White paper is 0 in these images.",
            lambda images, weights, side, count: np.where(
                _with(np.ones_like(images), _top(weights, count), side) == 0, 1, images
            ).astype(images.dtype),
        ),
    ),
    hints=(
        "np.argsort(weights, axis=1) gives the numbers of the patches from small to large weight.",
        "Patch i starts at row i // columns * patch_size and column i % columns * patch_size.",
        "Sort -weights, and the largest come first. In a copy, set the squares of the first count "
        "numbers of each image to 0.",
    ),
)

# ---------------------------------------------------------------------------- roll_out


def _mean(layer):
    return layer.mean(axis=0)


def _roll(weights, *, heads=_mean, half=0.5, left=True, layers=None):
    """The product over the layers with one choice for each step that can go wrong."""
    total = np.eye(weights.shape[-1])
    for layer in weights[layers] if layers is not None else weights:
        step = half * heads(layer) + (1 - half) * np.eye(len(total))
        total = step @ total if left else total @ step
    return total


def _whole_residual(weights):
    total = np.eye(weights.shape[-1])
    for layer in weights:
        total = (layer.mean(axis=0) + np.eye(len(total))) @ total
    return total


def _rows_normalised(weights):
    """The residual added once, at the end."""
    return 0.5 * _roll(weights, half=1) + 0.5 * np.eye(weights.shape[-1])


def _place_by_place(start):
    def roll(weights):
        total = start(weights.shape[-1])
        for layer in weights:
            total = total * (0.5 * layer.mean(axis=0) + 0.5 * np.eye(len(total)))
        return total

    return roll


def _half_identity(weights):
    total = np.eye(weights.shape[-1])
    for layer in weights:
        total = (layer.mean(axis=0) + np.eye(len(total)) / 2) @ total
    return total


def _head_by_head(weights):
    return np.mean([_roll(head[:, None]) for head in weights.swapaxes(0, 1)], axis=0)


def _sum_of_layers(weights):
    return 0.5 * weights.mean(axis=(0, 1)) + 0.5 * np.eye(weights.shape[-1])


def _layer_cases():
    rng = np.random.default_rng(13)
    yield Case("one layer of one head", np.array([[[[0.75, 0.25], [0.5, 0.5]]]]))
    sizes = {
        (1, 2, 2, 2): "two heads",
        (2, 1, 2, 2): "two layers",
        (2, 2, 2, 2): "two layers of two heads",
        (3, 2, 3, 3): "three layers",
        (2, 3, 4, 4): "three heads",
        (3, 4, 3, 3): "three layers of four heads",
        (4, 2, 2, 2): "four layers",
    }
    for shape, label in sizes.items():
        yield Case(label, _weights(rng, *shape))
    yield Case("float32", _weights(rng, 2, 2, 3, 3).astype(np.float32))


def _weights(rng, *shape):
    """Rows of sixteenths that sum to 1."""
    parts = rng.dirichlet(np.ones(shape[-1]), size=shape[:-1])
    return rng.multinomial(16, parts) / 16


roll_out = WriteFunction(
    level=2,
    trains="attention over several layers, multiplied",
    reference=lambda weights: _roll(weights).astype(weights.dtype),
    cases=tuple(_layer_cases()),
    mistakes=(
        Mistake(
            "residual left out",
            "The layers are multiplied as if attention were all. Half of each token stays where it "
            "is: 0.5 * mean + 0.5 * identity.",
            partial(_roll, half=1),
        ),
        Mistake(
            "residual not halved",
            "The identity was added whole, so the rows sum to 2 for one layer, 4 for two. Halve "
            "the sum in each layer.",
            _whole_residual,
        ),
        Mistake(
            "halved once, at the end",
            "Every layer is halved, not the product: rows of two layers sum to 2 here.",
            lambda weights: _whole_residual(weights) / 2,
        ),
        Mistake(
            "only the identity halved",
            "The rows of one layer sum to 1.5. Halve the sum: (mean + identity) / 2.",
            _half_identity,
        ),
        Mistake(
            "residual added once, at the end",
            "Every layer has a residual. Add the identity before each product.",
            _rows_normalised,
        ),
        Mistake(
            "layers in the other order",
            "What the last layer reads is what the layers before it wrote: the last layer stands "
            "on the left of the product.",
            partial(_roll, left=False),
        ),
        Mistake(
            "largest head instead of the mean",
            "The maximum over the heads was taken. The mean is asked for.",
            partial(_roll, heads=lambda layer: layer.max(axis=0)),
        ),
        Mistake(
            "heads added",
            "The heads were added, so the rows sum to more than 1. Take their mean.",
            partial(_roll, heads=lambda layer: layer.sum(axis=0)),
        ),
        Mistake(
            "one head alone",
            "Only one head was used. Take the mean over all of them.",
            partial(_roll, heads=lambda layer: layer[0]),
            partial(_roll, heads=lambda layer: layer[-1]),
        ),
        Mistake(
            "one layer alone",
            "Only one layer was used. Multiply all of them.",
            partial(_roll, layers=slice(-1, None)),
            partial(_roll, layers=slice(0, 1)),
        ),
        Mistake(
            "two layers alone",
            "Only two layers were used. Multiply all of them, however many there are.",
            partial(_roll, layers=slice(-2, None)),
            partial(_roll, layers=slice(0, 2)),
        ),
        Mistake(
            "multiplied place by place",
            "* multiplies place by place. A path goes from token to token: use @.",
            _place_by_place(lambda n: np.ones((n, n))),
            _place_by_place(np.eye),
        ),
        Mistake(
            "started with ones",
            "Each row sums to 1, so ones stay ones. Start with the identity, np.eye(L).",
            lambda weights: np.ones(weights.shape[-2:]),
        ),
        Mistake(
            "each head followed alone",
            "The mean over the heads was taken at the end. Take it in each layer, before the "
            "product.",
            _head_by_head,
        ),
        Mistake(
            "layers and heads swapped",
            "Axis 0 counts the layers, axis 1 the heads.",
            lambda weights: _roll(weights.swapaxes(0, 1)),
        ),
        Mistake(
            "mean over the layers",
            "The layers were averaged. They come one after the other, so they are multiplied.",
            _sum_of_layers,
        ),
        Mistake(
            "transposed",
            "Rows and columns are swapped: each row must sum to 1.",
            lambda weights: _roll(weights).T,
            partial(_roll, heads=lambda layer: layer.mean(axis=0).T),
        ),
    ),
    hints=(
        "Start with np.eye(L), and change it once for each layer.",
        "One layer is 0.5 * layer.mean(axis=0) + 0.5 * np.eye(L).",
        "total = step @ total: the later layer stands on the left.",
    ),
)

# ---------------------------------------------------------------------------- patch_test


def _by_slices(images, side):
    images = np.asarray(images)
    _, height, width = images.shape
    corners = [(i, j) for i in range(0, height, side) for j in range(0, width, side)]
    parts = [images[:, i : i + side, j : j + side] for i, j in corners]
    return np.stack([part.reshape(len(images), -1) for part in parts], axis=1)


def _by_einsum(images, side):
    return np.einsum("brpcq->brcpq", _axes(np.asarray(images), side)).reshape(
        len(images), -1, side**2
    )


def _of_arrays(patchify):
    return lambda images, side: patchify(np.asarray(images), side)


def _columns_from_height(images, side):
    """Right in square images; elsewhere the places are counted in a grid of wrong width.

    It refuses no size. So a test that asks for nothing but a refusal catches it, and is told what
    it lets through.
    """
    batch, height, width = images.shape
    columns, inside = height // side, np.arange(side)
    patches = []
    for i in range(height // side * (width // side)):
        rows, places = i // columns * side + inside, i % columns * side + inside
        part = images[:, rows % height][:, :, places % width]
        patches.append(part.reshape(batch, -1))
    return np.stack(patches, axis=1)


def _empty(*place):
    """A patchify whose loop leaves something out."""

    def patchify(images, side):
        patches = _patchify(np.asarray(images), side).copy()
        patches[place] = 0
        return patches

    return patchify


def _compare(batch, rows, columns, side, look=lambda patches: patches):
    """A test that compares patches, or what `look` takes from them, with the right ones."""

    def test(patchify):
        images = _numbers(batch, rows * side, columns * side)
        actual, expected = look(np.asarray(patchify(images, side))), look(_patchify(images, side))
        assert np.shape(actual) == np.shape(expected)
        assert np.allclose(actual, expected)

    return test


def _blank(side):
    def test(patchify):
        expected = np.ones((2, 6, side**2))
        assert np.array_equal(patchify(np.ones((2, 2 * side, 3 * side)), side), expected)

    return test


def _with_itself(side):
    def test(patchify):
        images = _numbers(2, 2 * side, 3 * side)
        assert np.array_equal(patchify(images, side), patchify(images, side))

    return test


def _weak(batch, look=lambda patches: patches, grids=((2, 3), (3, 2), (2, 2))):
    """Tests with one weakness, on several grids and with both sides: these do not count."""
    return [_compare(batch, *grid, side, look) for grid in grids for side in (2, 3)]


ALL = slice(None)

patch_test = CatchFaults(
    level=2,
    trains="a test that sees where each pixel goes",
    right={
        "reshape and transpose": _of_arrays(_patchify),
        "slices, stacked": _by_slices,
        "einsum": _by_einsum,
    },
    faults=(
        Mistake(
            "reshaped at once",
            "The shape is right, the numbers are not. Compare numbers of an image with more than "
            "one patch in a row.",
            _of_arrays(_flat),
        ),
        Mistake(
            "pixels of a patch column by column",
            "Compare the order of the pixels inside a patch.",
            _of_arrays(_moved(0, 1, 3, 4, 2)),
        ),
        Mistake(
            "patches column by column",
            "Compare patch by patch, in a grid with several rows and several columns.",
            _of_arrays(_moved(0, 3, 1, 2, 4)),
        ),
        Mistake(
            "everything column by column",
            "Compare number by number, in a grid with several rows and several columns.",
            _of_arrays(_moved(0, 3, 1, 4, 2)),
        ),
        Mistake(
            "pixels that are not neighbours",
            "Compare the pixels of one patch with those of the image.",
            _of_arrays(_every_other),
        ),
        Mistake(
            "reshaped after a turn",
            "The shape is right, the numbers are not. Compare numbers.",
            _of_arrays(_turned_first),
        ),
        Mistake(
            "patches in reverse",
            "Compare a patch that is not in the middle.",
            _of_arrays(lambda images, side: _patchify(images, side)[:, ::-1]),
        ),
        Mistake("first patch left empty", "Compare all patches.", _empty(ALL, 0)),
        Mistake("last patch left empty", "Compare all patches.", _empty(ALL, -1)),
        Mistake("last pixel left empty", "Compare all pixels of a patch.", _empty(ALL, ALL, -1)),
        Mistake(
            "second image left empty",
            "Compare all images of a batch of two.",
            _empty(slice(1, None)),
        ),
        Mistake(
            "grid not joined",
            "Compare the shape: the patches have one axis.",
            _of_arrays(_grid_kept),
        ),
        Mistake(
            "columns counted from the height",
            "In square images nothing is wrong. Use an image that is wider than high.",
            _of_arrays(_columns_from_height),
        ),
        Mistake(
            "patch_size ignored",
            "This version cuts into squares of 2 by 2 pixels, whatever patch_size says.",
            _of_arrays(lambda images, side: _patchify(images, 2)),
        ),
    ),
    mistakes=(
        Mistake(
            "only the shape",
            "Most wrong versions have the right shape. Compare numbers.",
            *_weak(2, np.shape),
        ),
        Mistake(
            "an assertion that no fault breaks",
            "What the test asserts holds for any of these functions. Say of a pixel where it must "
            "be.",
            _with_itself(3),
            _with_itself(2),
        ),
        Mistake(
            "one row of patches",
            "With one row the grid has no second direction. Use several rows and columns.",
            *_weak(2, grids=((1, 4),)),
        ),
        Mistake(
            "one column of patches",
            "With one column the grid has no second direction. Use several rows and columns.",
            *_weak(2, grids=((4, 1),)),
        ),
        Mistake(
            "one patch only",
            "With one patch there is nothing to put in order. Use several.",
            *_weak(2, grids=((1, 1),)),
            *_weak(1, grids=((1, 1),)),
        ),
        Mistake(
            "patches of one pixel",
            "Inside such a patch nothing can be out of order. Use larger ones.",
            _compare(2, 2, 3, 1),
        ),
        Mistake(
            "one image only",
            "A version that forgets all images but the first one passes. Use a batch of two, and "
            "compare both.",
            *_weak(1),
            *_weak(2, lambda patches: patches[0]),
        ),
        Mistake(
            "constant image",
            "All pixels hold the same number, so wrong places do not show. Number them.",
            _blank(3),
            _blank(2),
        ),
        Mistake(
            "right numbers at wrong places pass",
            "That is so for a sum or for sorted numbers. Compare place by place.",
            *_weak(2, np.sum),
            *_weak(2, lambda patches: np.sort(patches, axis=None)),
        ),
        Mistake(
            "only the first patch",
            "What the test does not look at can be any number. Compare all patches.",
            *_weak(2, lambda patches: patches[:, 0]),
        ),
        Mistake(
            "order of the pixels inside a patch not compared",
            "Sums or sorted pixels of each patch say nothing of the order inside it.",
            *_weak(2, lambda patches: patches.sum(-1)),
            *_weak(2, lambda patches: np.sort(patches, axis=-1)),
        ),
        Mistake(
            "as many rows as columns",
            "A version that counts the columns from the height passes. Use an image that is wider "
            "than high.",
            *_weak(2, grids=((2, 2), (3, 3))),
        ),
        Mistake(
            "no side but 2",
            "A version that ignores patch_size, and cuts into squares of 2 by 2 pixels, passes. "
            "Use another side, or two of them.",
            _compare(2, 2, 3, 2),
        ),
    ),
    nearly=(
        Mistake(
            "reshaped at once",
            "It accepts patches that are reshaped at once, the fault of exercise 11.2.",
            _of_arrays(_flat),
        ),
        Mistake(
            "pixels of a patch column by column",
            "It accepts a version whose patches hold their pixels column by column. They go row by "
            "row.",
            _of_arrays(_moved(0, 1, 3, 4, 2)),
        ),
        Mistake(
            "patches column by column",
            "It accepts a version whose patches come column by column. They go row by row.",
            _of_arrays(_moved(0, 3, 1, 2, 4)),
        ),
    ),
    hints=(
        "np.arange(…).reshape(…) numbers the pixels, so that each says where it comes from.",
        "Use two images, several rows and columns of patches, and make all sizes different. Try "
        "two sides of a patch.",
        "Patch i is images[:, r : r + p, c : c + p] with r = i // columns * p and "
        "c = i % columns * p, its pixels in reading order. Assert the shape, too.",
    ),
)

EXERCISES = {
    "patch_tokens": patch_tokens,
    "patch_fault": patch_fault,
    "erase": erase,
    "roll_out": roll_out,
    "patch_test": patch_test,
}
