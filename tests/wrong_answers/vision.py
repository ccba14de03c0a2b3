"""Answers to the exercises of chapter 11: right ones, listed mistakes anew, new mistakes."""

import math

import numpy as np
import torch

# ---------------------------------------------------------------------------- patch_tokens

PATCH_TOKENS = {
    "class token forgotten": [(15, 48), (15.0, 48)],
    "channels forgotten": [(16, 16), (np.int64(16), 16)],
    "class token and channels forgotten": [(15, 16)],
    "patches of each channel counted apart": [(46, 16), (45, 16)],
    "rows and columns added": [(9, 48), (8, 48)],
    "pixels taken for patches": [(241, 3), (240, 3), (241, 48), (240, 48), (241, 16)],
    "the numbers of one pixel": [(16, 3), (15.0, 3)],
    "patches of 4 pixels": [(61, 12), (60, 12), (16, 12)],
    "the two numbers swapped": [(48, 16)],
}
PATCH_TOKENS_RIGHT = [(16, 48), (16.0, 48.0), (np.int64(16), np.int64(48))]
PATCH_TOKENS_NEW = [
    16, 48, (16,), (16, 48, 1), [16, 48], "16, 48", True, (0, 0), (17, 48), (16, 64), (16, 144),
    (-16, 48), (16, math.nan),
]  # fmt: skip

# ---------------------------------------------------------------------------- patch_fault


def by_loops(patch_of=lambda i, j, rows, columns: i * columns + j,
             pixel_of=lambda r, c, side: r * side + c,
             source=lambda i, r, side, count: i * side + r):  # fmt: skip
    """Patches written pixel by pixel."""

    def function(images, side):
        batch, height, width = images.shape
        rows, columns = height // side, width // side
        result = np.empty((batch, rows * columns, side * side), images.dtype)
        for i, j, r, c in np.ndindex(rows, columns, side, side):
            pixel = images[:, source(i, r, side, rows), source(j, c, side, columns)]
            result[:, patch_of(i, j, rows, columns), pixel_of(r, c, side)] = pixel
        return result

    return function


right_patches = by_loops()


def by_splits(images, side):
    rows = np.split(images, images.shape[1] // side, axis=1)
    squares = [s for row in rows for s in np.split(row, images.shape[2] // side, axis=2)]
    return np.stack([square.reshape(len(images), -1) for square in squares], axis=1)


def by_unfold(images, side):
    x = torch.tensor(images)[:, None]
    return torch.nn.functional.unfold(x, side, stride=side).transpose(1, 2).numpy()


def squares(images, side):
    return right_patches(images, side).reshape(len(images), -1, side, side)


def column_first(i, j, rows, columns):
    return j * rows + i


def pixel_column_first(r, c, side):
    return c * side + r


def turned(images, side):
    return np.stack([image.T.ravel().reshape(-1, side**2) for image in images])


def miscut(height_wrong):
    """Pixels of every second patch along one axis only."""

    def along(wrong):
        return lambda i, r, side, count: r * count + i if wrong else i * side + r

    def function(images, side):
        batch, height, width = images.shape
        rows, columns = height // side, width // side
        result = np.empty((batch, rows * columns, side * side), images.dtype)
        for i, j, r, c in np.ndindex(rows, columns, side, side):
            line = along(height_wrong)(i, r, side, rows)
            place = along(not height_wrong)(j, c, side, columns)
            result[:, i * columns + j, r * side + c] = images[:, line, place]
        return result

    return function


def cut_other_way(images, side):
    batch, height, width = images.shape
    cut = images.reshape(batch, side, height // side, width // side, side)
    return np.moveaxis(cut, 3, 2).reshape(batch, -1, side**2)


def height_for_width(images, side):
    """Columns counted from the height, with places that wrap around."""
    _, height, width = images.shape
    columns, square = height // side, np.ix_(range(side), range(side))
    patches = []
    for i in range(height * width // side**2):
        shift = -(i // columns) * side, -(i % columns) * side
        patches.append([np.roll(image, shift, axis=(0, 1))[square].ravel() for image in images])
    return np.swapaxes(np.array(patches), 0, 1)


def overlapping(images, side):
    _, height, width = images.shape
    corners = [(i, j) for i in range(height - side + 1) for j in range(width - side + 1)]
    cut = [images[:, i : i + side, j : j + side].reshape(len(images), -1) for i, j in corners]
    return np.stack(cut, axis=1)


PATCH_FAULT = {
    "the fault is still there: reshaped at once": [
        lambda x, side: np.stack([image.ravel().reshape(-1, side**2) for image in x]),
        lambda x, side: np.split(x.reshape(1, len(x), -1, side**2), 1)[0][0],
    ],
    "pixels of a patch column by column": [
        by_loops(pixel_of=pixel_column_first),
        lambda x, side: squares(x, side).swapaxes(2, 3).reshape(len(x), -1, side**2),
    ],
    "patches column by column": [by_loops(patch_of=column_first)],
    "everything column by column": [
        by_loops(patch_of=column_first, pixel_of=pixel_column_first),
        lambda x, side: right_patches(x.swapaxes(1, 2), side),
    ],
    "pixels that are not neighbours": [
        by_loops(source=lambda i, r, side, count: r * count + i),
    ],
    "turned, then reshaped": [turned],
    "patches that overlap": [overlapping],
    "grid not joined": [
        lambda x, side: right_patches(x, side).reshape(
            len(x), x.shape[1] // side, x.shape[2] // side, -1
        ),
    ],
    "pixels not joined": [squares],
    "patches in reverse": [
        by_loops(patch_of=lambda i, j, rows, columns: (rows - i) * columns - j - 1),
    ],
    "one axis cut the other way round": [miscut(True), miscut(False), cut_other_way],
    "columns counted from the height": [height_for_width],
    "patch_size ignored": [
        lambda x, side: right_patches(x, 2),
        lambda x, side: (
            x.reshape(len(x), x.shape[1] // 2, 2, -1, 2).swapaxes(2, 3).reshape(len(x), -1, 4)
        ),
    ],
}
PATCH_FAULT_RIGHT = [right_patches, by_splits, by_unfold]
PATCH_FAULT_NEW = [
    lambda x, side: x,
    lambda x, side: right_patches(x, side)[..., ::-1],
    lambda x, side: right_patches(x, side)[::-1],
    lambda x, side: right_patches(x, side) + 1e-3,
    lambda x, side: right_patches(x, side)[:, :1],
    lambda x, side: right_patches(x, side)[None],
    lambda x, side: right_patches(x, side).tolist(),
    lambda x, side: right_patches(x, side).round(),
    lambda x, side: right_patches(x, side).swapaxes(1, 2),
    lambda x, side: right_patches(x, side).mean(axis=-1),
    lambda x, side: np.sort(right_patches(x, side), axis=-1),
    lambda x, side: np.roll(right_patches(x, side), 1, axis=1),
    lambda x, side: right_patches(x, 1),
    lambda x, side: by_splits(x[:1], side),
    lambda x, side: x.reshape(len(x), -1, side, x.shape[2] // side, side).transpose(1, 2),
    lambda x, side: x.reshape(
        len(x), x.shape[1] // side, side, x.shape[1] // side, side
    ).transpose(0, 1, 3, 2, 4).reshape(len(x), -1, side**2),
    lambda x: x,
]  # fmt: skip

# ---------------------------------------------------------------------------- erase


def by_squares(choose, fill=0.0, order="C"):
    """Erases square by square; `choose(weights, count)` lists (image, patch)."""

    def function(images, weights, patch_size, count):
        p, (_, height, width) = patch_size, images.shape
        grid, result = (height // p, width // p), images.copy()
        for n, i in choose(weights, count):
            row, column = np.unravel_index(i, grid, order=order)
            result[n, row * p : (row + 1) * p, column * p : (column + 1) * p] = fill
        return result

    return function


def largest(weights, count):
    return [(n, i) for n, w in enumerate(weights) for i in np.argsort(w)[::-1][:count]]


def smallest(weights, count):
    return [(n, i) for n, w in enumerate(weights) for i in np.argsort(w)[:count]]


def rest(weights, count):
    return [(n, i) for n, w in enumerate(weights) for i in np.argsort(w)[: len(w) - count]]


def argmax_only(weights, count):
    return [(n, w.argmax()) for n, w in enumerate(weights)] if count else []


def of_the_first(weights, count):
    return [(n, i) for n in range(len(weights)) for i in np.argsort(weights[0])[::-1][:count]]


def of_all(weights, count):
    order = np.argsort(weights.ravel())[::-1][:count]
    return [divmod(int(i), weights.shape[1]) for i in order]


right_erase = by_squares(largest)


def erase_by_patches(images, weights, patch_size, count):
    batch, height, width = images.shape
    p = patch_size
    cut = images.reshape(batch, height // p, p, width // p, p).copy()
    limit = np.sort(weights, axis=1)[:, weights.shape[1] - count :].min(
        axis=1, initial=np.inf, keepdims=True
    )
    gone = (weights >= limit).reshape(batch, height // p, width // p)
    cut.transpose(0, 1, 3, 2, 4)[gone] = 0
    return cut.reshape(images.shape)


def last_of_order(images, weights, patch_size, count):
    """The trap of -0: the last 0 numbers are all of them."""
    chosen = np.argsort(weights, axis=1)[:, -count:]
    return by_squares(lambda w, c: [(n, i) for n, row in enumerate(chosen) for i in row])(
        images, weights, patch_size, count
    )


def by_slices(step, columns_of):
    def function(images, weights, patch_size, count):
        result, columns = images.copy(), columns_of(images) // patch_size
        for n, i in largest(weights, count):
            top, left = i // columns * step(patch_size), i % columns * step(patch_size)
            result[n, top : top + patch_size, left : left + patch_size] = 0
        return result

    return function


def along_the_batch(weights, count):
    return [(n, i) for n, row in enumerate((-weights).argsort(0)) for i in row[:count]]


def of_the_sum(weights, count):
    order = np.argsort(weights.sum(axis=0))[::-1][:count]
    return [(n, i) for n in range(len(weights)) for i in order]


def taken_to(number):
    """argmax again and again; `number(row)` stands in for a weight that was taken."""

    def choose(weights, count):
        chosen = []
        for n, row in enumerate(weights.tolist()):
            for _ in range(count):
                i = row.index(max(row))
                row[i] = number
                chosen.append((n, i))
        return chosen

    return choose


def cut_into_strips(images, weights, patch_size, count):
    result = images.copy()
    for n, i in largest(weights, count):
        result[n].reshape(-1, patch_size**2)[i] = 0
    return result


def corner_only(images, weights, patch_size, count):
    result, columns = images.copy(), images.shape[2] // patch_size
    for n, i in largest(weights, count):
        result[n, i // columns * patch_size, i % columns * patch_size] = 0
    return result


def dimmed(images, weights, patch_size, count):
    batch, height, width = images.shape
    grid = weights.reshape(batch, height // patch_size, width // patch_size)
    return images * np.kron(grid, np.ones((1, patch_size, patch_size)))


ERASE = {
    "the smallest weights erased": [by_squares(smallest)],
    "the others erased": [by_squares(rest)],
    "only one patch erased": [
        by_squares(argmax_only),
        by_squares(lambda w, count: largest(w, 1)),
    ],
    "one patch too many": [by_squares(lambda w, count: largest(w, count + 1))],
    "the first image decides for all": [by_squares(of_the_first)],
    "the largest of all images together": [by_squares(of_all)],
    "one pixel of each patch erased": [corner_only],
    "patches numbered column by column": [by_squares(largest, order="F")],
    "multiplied by the weights": [dimmed],
    "filled with 1": [by_squares(largest, fill=1.0)],
    "the mean weights decide for all": [by_squares(of_the_sum)],
    "sorted along the images": [by_squares(along_the_batch)],
    "everything erased for count 0": [last_of_order],
    "sign of the weights left out": [by_squares(lambda w, count: largest(np.abs(w), count))],
    "a taken weight set to 0 or -1": [by_squares(taken_to(0)), by_squares(taken_to(-1))],
    "strips in place of squares": [cut_into_strips],
    "squares one pixel apart": [by_slices(lambda side: 1, lambda x: x.shape[2])],
    "columns counted from the height": [by_slices(lambda side: side, lambda x: x.shape[1])],
}
ERASE_RIGHT = [right_erase, erase_by_patches, by_squares(taken_to(-math.inf))]


def in_place(images, weights, patch_size, count):
    images[:] = right_erase(images, weights, patch_size, count)
    return images


def sorts_weights(images, weights, patch_size, count):
    weights.sort(axis=1)
    return right_erase(images, weights, patch_size, count)


ERASE_NEW = [
    lambda x, w, p, n: x,
    lambda x, w, p, n: np.zeros_like(x),
    lambda x, w, p, n: right_erase(x, w, p, n) + 1e-3,
    lambda x, w, p, n: right_erase(x, w, p, n)[0],
    lambda x, w, p, n: right_erase(x, w, p, n)[None],
    lambda x, w, p, n: right_erase(x, w, p, n).tolist(),
    lambda x, w, p, n: right_erase(x, w, p, n).round(),
    lambda x, w, p, n: right_erase(x, w, p, n).swapaxes(1, 2),
    lambda x, w, p, n: right_erase(x[::-1], w, p, n),
    lambda x, w, p, n: -right_erase(x, w, p, n),
    by_squares(largest, fill=0.5),
    by_squares(lambda w, count: largest(w, max(count - 1, 0))),
    by_squares(largest, fill=np.nan),
    in_place,
    sorts_weights,
    lambda x, w, p, n: right_patches(right_erase(x, w, p, n), p),
    lambda x, w, p, n: right_erase(x, w, p, n) if n else None,
    lambda x, w: x,
]

# ---------------------------------------------------------------------------- roll_out


def by_paths(step_of, order=1):
    """The products entry by entry, over the layers in one of two orders."""

    def function(weights):
        n = weights.shape[-1]
        total = [[float(a == b) for b in range(n)] for a in range(n)]
        for layer in weights[::order]:
            step = step_of(layer)
            total = [
                [sum(step[a, k] * total[k][b] for k in range(n)) for b in range(n)]
                for a in range(n)
            ]
        return np.array(total, dtype=weights.dtype)

    return function


def half_mean(layer):
    return (sum(layer) / len(layer) + np.eye(layer.shape[-1])) / 2


right_rollout = by_paths(half_mean)


def by_matrix_power(weights):
    steps = [np.eye(weights.shape[-1]) / 2 + np.einsum("hqk->qk", w) / len(w) / 2 for w in weights]
    return np.linalg.multi_dot([*steps[::-1], np.eye(weights.shape[-1])]).astype(weights.dtype)


def with_eye(weights, scale):
    return by_paths(lambda layer: scale * (layer.mean(0) + np.eye(layer.shape[-1])))(weights)


def elementwise(weights):
    return np.prod([half_mean(layer) for layer in weights], axis=0)


def elementwise_from_identity(weights):
    return np.diag(np.diag(elementwise(weights)))


def head_by_head(weights):
    return sum(right_rollout(weights[:, h : h + 1]) for h in range(weights.shape[1])) / len(
        weights[0]
    )


ROLL_OUT = {
    "residual left out": [by_paths(lambda layer: sum(layer) / len(layer))],
    "residual not halved": [lambda w: with_eye(w, 1), lambda w: right_rollout(w) * 2 ** len(w)],
    "residual added once, at the end": [
        lambda w: (by_paths(lambda a: sum(a) / len(a))(w) + np.eye(w.shape[-1])) / 2,
    ],
    "layers in the other order": [by_paths(half_mean, order=-1)],
    "largest head instead of the mean": [
        by_paths(lambda a: (np.amax(a, 0) + np.eye(a.shape[-1])) / 2),
    ],
    "heads added": [by_paths(lambda a: (sum(a) + np.eye(a.shape[-1])) / 2)],
    "one head alone": [
        by_paths(lambda a: half_mean(a[:1])),
        by_paths(lambda a: half_mean(a[-1:])),
    ],
    "one layer alone": [lambda w: half_mean(w[-1]), lambda w: half_mean(w[0])],
    "two layers alone": [lambda w: right_rollout(w[-2:]), lambda w: right_rollout(w[:2])],
    "multiplied place by place": [elementwise, elementwise_from_identity],
    "halved once, at the end": [lambda w: with_eye(w, 1) / 2],
    "only the identity halved": [by_paths(lambda a: a.mean(0) + np.eye(a.shape[-1]) / 2)],
    "started with ones": [lambda w: right_rollout(w) @ np.ones(w.shape[-2:])],
    "each head followed alone": [head_by_head],
    "layers and heads swapped": [lambda w: right_rollout(np.swapaxes(w, 0, 1))],
    "mean over the layers": [lambda w: sum(half_mean(layer) for layer in w) / len(w)],
    "transposed": [
        lambda w: np.array(right_rollout(w)).T,
        by_paths(lambda a: (a.mean(0).T + np.eye(a.shape[-1])) / 2),
    ],
}
ROLL_OUT_RIGHT = [right_rollout, by_matrix_power, lambda w: with_eye(w, 0.5)]


def adds_in_place(weights):
    weights += np.eye(weights.shape[-1])
    weights /= 2
    return by_paths(lambda layer: layer.mean(0))(weights)


ROLL_OUT_NEW = [
    lambda w: w,
    lambda w: np.eye(w.shape[-1]),
    lambda w: w.sum(axis=(0, 1)),
    lambda w: right_rollout(w) + 1e-3,
    lambda w: right_rollout(w)[0],
    lambda w: right_rollout(w)[None],
    lambda w: right_rollout(w).tolist(),
    lambda w: right_rollout(w).round(1),
    lambda w: right_rollout(w)[::-1],
    lambda w: by_paths(lambda a: a.min(0))(w),
    lambda w: by_paths(lambda a: 0.9 * a.mean(0) + 0.1 * np.eye(a.shape[-1]))(w),
    lambda w: by_paths(lambda a: a.prod(0))(w),
    lambda w: right_rollout(w) * np.nan,
    lambda w: right_rollout(w[0]),
    lambda w: right_rollout(w)[0, 1:],
    adds_in_place,
    lambda w, n: w,
]

# ---------------------------------------------------------------------------- patch_test

X = np.arange(2 * 6 * 8.0).reshape(2, 6, 8)
Y = np.arange(2 * 6 * 9.0).reshape(2, 6, 9)


def good_patch_test(patchify):
    patches = patchify(Y, 3)
    assert np.shape(patches) == (2, 6, 9)
    for n, i, k in np.ndindex(2, 6, 9):
        assert patches[n][i][k] == Y[n, i // 3 * 3 + k // 3, i % 3 * 3 + k % 3]


def good_patch_test_by_unfold(patchify):
    for images, side in ((X, 2), (Y, 3)):
        np.testing.assert_array_equal(patchify(images, side), by_unfold(images, side))


def good_patch_test_that_raises(patchify):
    if not (np.asarray(patchify(Y, 3)) == right_patches(Y, 3)).all():
        raise AssertionError("wrong")


def compare(batch, rows, columns, side, look=np.asarray):
    def test(patchify):
        x = np.random.default_rng(3).normal(size=(batch, rows * side, columns * side))
        np.testing.assert_allclose(look(patchify(x, side)), look(by_splits(x, side)))

    return test


def only_axes(patchify):
    patches = patchify(X, 2)
    assert patches.ndim == 3
    assert list(patches.shape) == [2, 12, 4]


def only_repeats(patchify):
    assert (patchify(X, 2) == patchify(X.copy(), 2)).all()


def only_size(patchify):
    assert np.size(patchify(X, 2)) == X.size


def fives(patchify):
    result = patchify(np.full((2, 6, 8), 5.0), 2)
    assert result.shape == (2, 12, 4)
    assert (result == 5).all()


PATCH_TEST = {
    "only the shape": [only_axes, compare(2, 3, 4, 2, np.shape)],
    "an assertion that no fault breaks": [only_repeats, only_size],
    "one row of patches": [compare(3, 1, 5, 2)],
    "one column of patches": [compare(3, 5, 1, 2)],
    "one patch only": [compare(3, 1, 1, 4)],
    "patches of one pixel": [compare(3, 4, 5, 1)],
    "one image only": [
        compare(1, 3, 4, 2),
        compare(2, 3, 4, 2, lambda patches: patches[0]),
    ],
    "constant image": [fives],
    "right numbers at wrong places pass": [
        compare(2, 3, 4, 2, np.sum),
        compare(2, 3, 4, 2, lambda patches: sorted(np.ravel(patches))),
    ],
    "only the first patch": [compare(2, 3, 4, 2, lambda patches: patches[:, 0])],
    "order of the pixels inside a patch not compared": [
        compare(2, 3, 4, 2, lambda patches: np.sum(patches, axis=-1)),
        compare(2, 3, 4, 2, lambda patches: np.sort(patches)),
    ],
    "as many rows as columns": [compare(2, 2, 2, 2), compare(2, 2, 2, 4), compare(3, 4, 4, 3)],
    "no side but 2": [compare(2, 2, 3, 2), compare(2, 4, 3, 2), compare(3, 3, 4, 2)],
}
PATCH_TEST_RIGHT = [
    good_patch_test, good_patch_test_by_unfold, good_patch_test_that_raises,
    compare(2, 4, 3, 3), compare(3, 2, 3, 4),
]  # fmt: skip


def wants_the_fault(patchify):
    assert np.allclose(patchify(X, 2), X.reshape(2, 12, 4))


def wants_columns(patchify):
    assert np.allclose(patchify(X, 2), by_loops(pixel_of=pixel_column_first)(X, 2))


def wants_list(patchify):
    assert patchify(X, 2) == right_patches(X, 2).tolist()


def never_calls(patchify):
    assert right_patches(X, 2).shape == (2, 12, 4)


def no_assert(patchify):
    np.allclose(patchify(X, 2), right_patches(X, 2))


def swallows(patchify):
    try:
        assert np.allclose(patchify(X, 2), right_patches(X, 2))
    except AssertionError:
        print("wrong")


def stops(patchify):
    assert patchify(X, 2).shape == undefined_name


def three_arguments(patchify):
    assert patchify(X, 2, 2).shape == (2, 12, 4)


def raises_another(patchify):
    if not np.array_equal(patchify(Y, 3), right_patches(Y, 3)):
        raise ValueError("wrong")


def only_last_patch(patchify):
    assert np.allclose(patchify(X, 2)[:, -1], right_patches(X, 2)[:, -1])


def only_first_pixels(patchify):
    assert np.allclose(patchify(X, 2)[..., 0], right_patches(X, 2)[..., 0])


def only_a_refusal(patchify):
    try:
        patchify(np.arange(30.0).reshape(1, 5, 6), 2)
    except ValueError:
        return
    raise AssertionError("accepted")


PATCH_TEST_NEW = [
    only_a_refusal,
    wants_the_fault, wants_columns, wants_list, never_calls, no_assert, swallows, stops,
    three_arguments, raises_another, only_last_patch, only_first_pixels,
    lambda patchify: patchify(X, 2),
]  # fmt: skip

ANSWERS = {
    "patch_tokens": (PATCH_TOKENS_RIGHT, PATCH_TOKENS, PATCH_TOKENS_NEW),
    "patch_fault": (PATCH_FAULT_RIGHT, PATCH_FAULT, PATCH_FAULT_NEW),
    "erase": (ERASE_RIGHT, ERASE, ERASE_NEW),
    "roll_out": (ROLL_OUT_RIGHT, ROLL_OUT, ROLL_OUT_NEW),
    "patch_test": (PATCH_TEST_RIGHT, PATCH_TEST, PATCH_TEST_NEW),
}
