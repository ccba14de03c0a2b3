"""The library that the chapters of the course build.

Names are imported on first use, so that the NumPy chapters start without loading torch.
"""

from importlib import import_module

_HOME = {
    "softmax": "lookup",
    "hard_lookup": "lookup",
    "nearest_lookup": "lookup",
    "soft_lookup": "lookup",
    "attention_weights": "single_head",
    "scaled_dot_product_attention": "single_head",
    "SingleHeadAttention": "single_head",
    "numpy_attention": "single_head",
}

__all__ = sorted(_HOME)


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__():
    return sorted(set(globals()) | set(__all__))
