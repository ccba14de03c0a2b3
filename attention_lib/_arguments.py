"""Checks of single arguments, by name: the rule, what was expected, what came."""

import math
from collections.abc import Iterable
from numbers import Real

import numpy as np
import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def kind(value):
    """What came, for a message: the dtype of a tensor, the type of anything else."""
    if isinstance(value, Tensor):
        return str(value.dtype)
    name = type(value).__name__
    is_numpys = name == "bool" and not isinstance(value, bool)
    return "numpy.bool" if is_numpys else name


def positive(**numbers):
    """Refuse what is not an integer of at least 1: TypeError, ValueError."""
    _integers(1, numbers)


def integers(**numbers):
    """Refuse with a TypeError what is not an integer."""
    _integers(-math.inf, numbers)


def counts(**numbers):
    """Refuse what is not an integer of at least 0: TypeError, ValueError."""
    _integers(0, numbers)


def flags(**values):
    """Refuse with a TypeError what is neither ``True`` nor ``False``.

    Text and arrays of one element are true in ways that nobody means.
    """
    for name, value in values.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False; got {kind(value)}")


def probability(name, p):
    """Refuse with a ValueError what is not a number from 0 to 1."""
    if isinstance(p, bool) or not (isinstance(p, Real) and 0 <= p <= 1):
        raise ValueError(f"{name} must be a probability between 0 and 1; got {p!r}")


def instance(name, value, type_, what):
    """Refuse with a TypeError what is not an instance of the type."""
    if not isinstance(value, type_):
        raise TypeError(f"{name} must be {what}; got {kind(value)}")


def function(**values):
    """Refuse with a TypeError what cannot be called."""
    for name, value in values.items():
        if not callable(value):
            raise TypeError(f"{name} must be a function; got {kind(value)}")


def texts(name, values, nonempty=False):
    """The texts as a list. A single text, or a list of something else, is a TypeError.

    With ``nonempty``, no text at all is a ValueError.
    """
    if isinstance(values, Iterable) and not isinstance(values, str | Tensor):
        values = list(values)
        if nonempty and not values:
            raise ValueError(f"{name} must hold at least one text; got none")
        if all(isinstance(value, str) for value in values):
            return values
    raise TypeError(f"{name} must be a list of texts; got {values!r:.60}")


def float_dtype(name, value):
    """Refuse with a TypeError what is not a float dtype that PyTorch computes in."""
    if not (isinstance(value, torch.dtype) and value in FLOATS):
        raise TypeError(f"{name} must be a float dtype of 16, 32 or 64 bits; got {value!r}")


def device(value):
    """The device; ``None``, for PyTorch's default, stays. What names no device: ValueError."""
    try:
        return None if value is None else torch.device(value)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device must be one of PyTorch, such as 'cpu' or 'cuda:0'; got {value!r}"
        ) from error


def tensor(name, value):
    """Refuse with a TypeError what is not a tensor."""
    instance(name, value, Tensor, "a torch.Tensor")


def float_tensor(name, value):
    """Refuse with a TypeError what is not a tensor of real floating numbers."""
    tensor(name, value)
    if value.dtype not in FLOATS:
        raise TypeError(f"{name} must have a real floating dtype; got {value.dtype}")


def ids(name, value, axes=("batch", "position"), size=None):
    """Refuse what is not an integer tensor with these axes and numbers from 0 to ``size - 1``.

    Raises:
        TypeError: Another dtype, or not a tensor.
        ValueError: Another shape, no number, or a number out of range.
    """
    if not isinstance(value, Tensor) or value.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name} must be an int64 or int32 tensor; got {kind(value)}")
    if value.ndim != len(axes) or not value.numel():
        raise ValueError(
            f"{name} must have shape ({', '.join(axes)}) and hold at least one number; "
            f"got {tuple(value.shape)}"
        )
    low, high = (int(x) for x in value.aminmax())
    if size is not None and (low < 0 or high >= size):
        raise ValueError(f"{name} must lie between 0 and {size - 1}; got {low} to {high}")


def block(pair, before):
    """The scores and values of a block, and what they have in common with every other block.

    Args:
        pair: Scores ``(..., L, n)`` and values ``(..., n, v)``.
        before: What the blocks before have in common; ``None`` for the first one.

    Raises:
        TypeError: Not a pair of float tensors of one dtype, or another one than before.
        ValueError: Shapes or devices that do not fit, no key, or another ``(..., L, v)``.
    """
    if not (isinstance(pair, tuple | list) and len(pair) == 2):
        raise TypeError(f"blocks must be pairs of scores and values; got {kind(pair)}")
    scores, values = pair
    float_tensor("scores of the blocks", scores)
    float_tensor("values of the blocks", values)
    for what, error in (("dtype", TypeError), ("device", ValueError)):
        both = getattr(scores, what), getattr(values, what)
        if both[0] != both[1]:
            raise error(f"blocks must have one {what}; got scores {both[0]} and values {both[1]}")
    shapes = tuple(scores.shape), tuple(values.shape)
    alike = min(map(len, shapes)) > 1 and shapes[0][:-2] == shapes[1][:-2]
    if not (alike and shapes[0][-1] == shapes[1][-2] > 0):
        raise ValueError(
            "a block needs scores (..., L, n) and values (..., n, v) with the same leading "
            f"axes and the same n of at least 1; got {shapes[0]} and {shapes[1]}"
        )
    common = scores.dtype, str(scores.device), (*shapes[0][:-1], shapes[1][-1])
    if common != (before or common):
        raise (ValueError if common[0] == before[0] else TypeError)(
            "all blocks must have the same dtype, device and (..., L, v); "
            f"got {before}, then {common}"
        )
    return scores, values, common


def bool_tensor(name, value, shape, axes):
    """Refuse what is not bool or does not broadcast to the shape of those axes.

    Raises:
        TypeError: Another dtype, or not a tensor.
        ValueError: A shape that does not broadcast.
    """
    if not isinstance(value, Tensor) or value.dtype != torch.bool:
        raise TypeError(f"{name} must be a bool tensor, True = counts; got {kind(value)}")
    sizes = zip(reversed(value.shape), reversed(shape), strict=False)
    if value.ndim > len(shape) or any(size not in (1, wanted) for size, wanted in sizes):
        raise ValueError(
            f"{name} must broadcast to {axes} = {tuple(shape)}; got {tuple(value.shape)}"
        )


def _integers(least, numbers):
    for name, number in numbers.items():
        if not isinstance(number, (int, np.int64)) or isinstance(number, bool):
            # NumPy's other integers wrap around, some of them at 256
            kinds = " of Python or an int64" * isinstance(number, np.integer)
            raise TypeError(f"{name} must be an integer{kinds}; got {number!r}")
        if number < least:
            raise ValueError(f"{name} must be at least {least}; got {number}")
