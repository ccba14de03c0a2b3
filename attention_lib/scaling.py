"""Chapter 3: how large scores get, how sharp that makes the softmax, and what slope is left.

NumPy only: what is measured here needs no gradient but the one that has a closed form.
"""

import math
import numbers
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Real

from attention_lib._numbers import is_finite
from attention_lib.lookup import _real, softmax

Array = np.ndarray


class ScoreStatistics(NamedTuple):
    """What :func:`score_statistics` measures."""

    mean: float
    variance: float
    largest_weight: float
    jacobian_norm: float


def softmax_jacobian(scores: Real[Array, "*batch k"]) -> Float[Array, "*batch k k"]:
    """How every weight changes with every score: ``diag(w) - outer(w, w)``, ``w`` the softmax.

    Entry ``(i, j)`` is the derivative of weight i by score j. It needs the weights alone: where
    one weight is 1 and the others are 0, all entries are 0.

    Args:
        scores: ``(..., k)``.

    Returns:
        ``(..., k, k)``, symmetric; every row and every column sums to 0.

    Raises:
        TypeError: The scores are not real numbers.
        ValueError: A single number.

    Example:
        >>> softmax_jacobian(np.array([0.0, 0.0]))
        array([[ 0.25, -0.25],
               [-0.25,  0.25]])

    Source:
        Bridle, 1990, derives it for training.
    """
    scores = _real("scores", scores)
    if scores.ndim < 1:
        raise ValueError("scores must have at least one axis, (..., k); got a single number")
    weights = softmax(scores)
    diagonal = weights[..., None] * np.eye(weights.shape[-1], dtype=weights.dtype)
    return diagonal - weights[..., :, None] * weights[..., None, :]


def score_statistics(
    d_k: int,
    scale: float | None = None,
    draw=None,
    rows: int = 1000,
    keys: int = 10,
    rng: np.random.Generator | int = 0,
) -> ScoreStatistics:
    """Mean and variance of dot products of random vectors, and what a softmax makes of them.

    Every query meets every key, ``rows * rows`` scores, for mean and variance. The softmax of
    each query runs over ``keys`` of them, so that the result does not depend on ``rows``.

    Args:
        d_k: Width of queries and keys.
        scale: Factor for the scores, ``1 / sqrt(d_k)`` by default.
        draw: A function of a generator and a shape that returns random components of that shape,
            ``(2, rows, d_k)`` for queries and keys; standard normal by default: independent, with
            mean 0 and variance 1.
        rows: How many queries, and how many keys; a multiple of ``keys``. 1000 give the variance
            within 5 % from ``d_k = 16`` on; they need 16 MB and 8 MB for the scores at 1024.
        keys: How many keys share the weight of one query.
        rng: A generator, or a seed for one.

    Returns:
        Mean and variance of the scores, and over the queries the mean of the largest weight and
        of the Frobenius norm of :func:`softmax_jacobian`.

    Raises:
        TypeError: Sizes that are not integers, an rng that is neither a generator nor a seed, or
            a draw that cannot be called.
        ValueError: A scale that is not a finite number, sizes that are not positive or do not
            fit, or components of another shape.

    Example:
        >>> round(score_statistics(d_k=64, scale=1.0).variance)
        64
        >>> round(score_statistics(d_k=64).variance, 1)
        1.0

    Source:
        Vaswani et al., "Attention is all you need", 2017, section 3.2.1, footnote 4.
    """
    for name, size in (("d_k", d_k), ("rows", rows), ("keys", keys)):
        if not isinstance(size, numbers.Integral) or isinstance(size, bool):
            raise TypeError(f"{name} must be an integer; got {size!r}")
    seed = 0 if isinstance(rng, np.random.Generator) else rng
    if not isinstance(seed, numbers.Integral) or isinstance(seed, bool) or seed < 0:
        raise TypeError(f"rng must be a NumPy generator or a seed of at least 0; got {rng!r}")
    if not (draw is None or callable(draw)):
        raise TypeError(f"draw must be a function or None; got {draw!r}")
    if scale is not None and not is_finite(scale):
        raise ValueError(f"scale must be a finite number or None; got {scale!r:.60}")
    if min(d_k, rows, keys) < 1 or rows % keys:
        raise ValueError(
            "d_k, rows and keys must be positive, and rows a multiple of keys; "
            f"got d_k = {d_k}, rows = {rows}, keys = {keys}"
        )
    draw = np.random.Generator.standard_normal if draw is None else draw
    vectors = _real("components", draw(np.random.default_rng(rng), (2, rows, d_k)))
    if vectors.shape != (2, rows, d_k):
        raise ValueError(f"draw must return the shape {(2, rows, d_k)}; got {vectors.shape}")
    query, key = vectors.astype(np.float64)  # products in half precision overflow
    scores = query @ key.T * (1 / math.sqrt(d_k) if scale is None else float(scale))
    groups = rows // keys
    own = scores.reshape(rows, groups, keys)[np.arange(rows), np.arange(rows) % groups]
    norms = np.linalg.norm(softmax_jacobian(own), axis=(-2, -1))
    measured = scores.mean(), scores.var(), softmax(own).max(axis=-1).mean(), norms.mean()
    return ScoreStatistics(*(float(number) for number in measured))
