"""Chapter 1: from the exact lookup of a ``dict`` to a weighted average. NumPy only.

All lookups share one layout: a query ``(d,)`` or several ``(q, d)``, keys ``(k, d)`` and one
value per key, ``(k,)`` or ``(k, v)``. The result has the query's leading axis and the value's
trailing one. Integers are computed in float64.
"""

import math
import numbers

import numpy as np
from jaxtyping import Float, Real

from attention_lib._numbers import is_finite

Array = np.ndarray


def softmax(x: Real[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    """Weights that are positive, sum to 1 along ``axis``, and keep the order of ``x``.

    Computes ``exp(x) / sum(exp(x))`` after subtracting the largest entry, which changes nothing
    in the result and keeps ``exp`` from overflowing (Bridle, 1990, for the name and the formula).

    Args:
        x: Scores of any shape. ``-inf`` gets weight 0.
        axis: The axis along which the weights compete and sum to 1.

    Returns:
        Weights of the shape of ``x``; float dtypes are kept. Where every score along the axis is
        ``-inf`` there is nothing to choose from, and all weights are 0. NaN and ``+inf`` give NaN.

    Raises:
        TypeError: The scores are not real numbers, or the axis is not an integer.
        ValueError: The scores have no such axis.

    Example:
        >>> softmax(np.array([0.0, np.log(3.0)]))
        array([0.25, 0.75])
    """
    x = _real("x", x)
    if not isinstance(axis, numbers.Integral) or isinstance(axis, bool):
        raise TypeError(f"axis must be an integer; got {axis!r}")
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis must be one of the {x.ndim} axes of x {x.shape}; got {axis}")
    dtype = x.dtype
    x = x.astype(np.result_type(dtype, np.float32))  # a sum in float16 can overflow
    peak = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    exponentials = np.exp(x - np.where(np.isneginf(peak), 0, peak))
    total = exponentials.sum(axis=axis, keepdims=True)
    return (exponentials / np.where(total == 0, 1, total)).astype(dtype)


def hard_lookup(
    query: Real[Array, "*q d"], keys: Real[Array, "k d"], values: Real[Array, "k *v"]
) -> Real[Array, "..."] | np.generic:
    """The value whose key equals the query exactly, as a ``dict`` gives it.

    Args:
        query: One query ``(d,)`` or several ``(q, d)``.
        keys: One key a row, ``(k, d)``. Of equal keys the last one counts, as in a ``dict``.
        values: One value for each key, ``(k,)`` or ``(k, v)``.

    Returns:
        The stored values, shape ``(*q, *v)``.

    Raises:
        KeyError: A query equals no key.
        ValueError: Shapes do not fit together.

    Example:
        >>> keys = np.array([[1, 0], [0, 1]])
        >>> int(hard_lookup(np.array([0, 1]), keys, np.array([20, 80])))
        80
    """
    query, keys, values = _table(query, keys, values)
    equal = (query[..., None, :] == keys).all(axis=-1)
    found = equal.any(axis=-1)
    if not found.all():
        raise KeyError(f"no key equals the query {query[~found][0].tolist()}")
    if not len(keys):  # and no query
        return values.copy()
    return values[len(keys) - 1 - equal[..., ::-1].argmax(axis=-1)]


def nearest_lookup(
    query: Real[Array, "*q d"], keys: Real[Array, "k d"], values: Real[Array, "k *v"]
) -> Real[Array, "..."] | np.generic:
    """The value of the key with the largest dot product with the query.

    For keys of one length this is the key at the smallest distance. Among equal scores the first
    key counts, as in ``np.argmax``.

    Args:
        query: One query ``(d,)`` or several ``(q, d)``.
        keys: One key a row, ``(k, d)``, at least one.
        values: One value for each key, ``(k,)`` or ``(k, v)``.

    Returns:
        The stored values, shape ``(*q, *v)``.

    Raises:
        ValueError: Shapes do not fit together, or there is no key.

    Example:
        >>> keys = np.array([[1.0, 0.0], [0.0, 1.0]])
        >>> int(nearest_lookup(np.array([0.1, 0.9]), keys, np.array([20, 80])))
        80
    """
    query, keys, values = _table(query, keys, values)
    _need_a_key(keys)
    return values[(query @ keys.T).argmax(axis=-1)]


def soft_lookup(
    query: Real[Array, "*q d"],
    keys: Real[Array, "k d"],
    values: Real[Array, "k *v"],
    temperature: float = 1.0,
) -> Float[Array, "..."] | np.floating:
    """The average of all values, weighted by ``softmax(query @ keys.T / temperature)``.

    Towards temperature 0 the weight gathers, in equal parts, on the keys with the largest dot
    product: with one such key this is :func:`nearest_lookup`, with several it is the mean of
    their values. At ``np.inf`` every key has the same weight.

    Args:
        query: One query ``(d,)`` or several ``(q, d)``.
        keys: One key a row, ``(k, d)``, at least one.
        values: One value for each key, ``(k,)`` or ``(k, v)``.
        temperature: Positive, in the unit of the scores.

    Returns:
        Weighted averages, shape ``(*q, *v)``.

    Raises:
        TypeError: The temperature is not a number.
        ValueError: Shapes do not fit together, there is no key, or the temperature is not positive.

    Example:
        >>> keys = np.array([[1.0, 0.0], [0.0, 1.0]])
        >>> values = np.array([20.0, 80.0])
        >>> float(soft_lookup(np.array([1.0, 1.0]), keys, values))
        50.0
    """
    query, keys, values = _table(query, keys, values)
    _need_a_key(keys)
    if not isinstance(temperature, numbers.Real) or isinstance(temperature, bool):
        raise TypeError(f"temperature must be a number; got {type(temperature).__name__}")
    if not temperature > 0:
        raise ValueError(
            f"temperature must be positive; got {temperature}. "
            "The limit towards 0 is nearest_lookup (where one key is nearest)."
        )
    if temperature < math.inf and not is_finite(temperature):
        raise ValueError("temperature must fit into a float64, or be np.inf for equal weights")
    scores = query @ keys.T
    # The largest first: a score over a small temperature is infinite, and their difference NaN.
    scores -= scores.max(axis=-1, keepdims=True, initial=np.finfo(scores.dtype).min)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scores = np.where(scores == 0, 0, scores / float(temperature))
    return softmax(scores) @ values


def _real(name, array):
    """``array`` as floats; complex numbers, text and bool are refused."""
    array = np.asarray(array)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must hold real numbers; got dtype {array.dtype}")
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def _table(query, keys, values):
    """The three arrays of a lookup, checked against each other."""
    query, keys = _real("query", query), _real("keys", keys)
    values = np.asarray(values)
    if values.dtype.kind not in "iuf":
        raise TypeError(f"values must hold real numbers; got dtype {values.dtype}")
    if query.ndim not in (1, 2) or keys.ndim != 2:
        raise ValueError(
            "query must have shape (d,) or (q, d) and keys (k, d); "
            f"got query {query.shape} and keys {keys.shape}"
        )
    if query.shape[-1] != keys.shape[1]:
        raise ValueError(
            "query and keys must have the same width d; "
            f"got query {query.shape} and keys {keys.shape}"
        )
    if values.ndim not in (1, 2) or len(values) != len(keys):
        raise ValueError(
            f"values must have one row for each of the {len(keys)} keys, shape (k,) or (k, v); "
            f"got {values.shape}"
        )
    return query, keys, values


def _need_a_key(keys):
    if len(keys) == 0:
        raise ValueError("an empty table has no nearest key: keys must have at least one row")
