"""One call of an answer: what it did, and how nothing of it stays behind. The engine uses this."""

import bdb
import io
import logging
import random
import sys
import warnings
from contextlib import contextmanager
from copy import deepcopy
from functools import partial, update_wrapper
from itertools import zip_longest

import numpy as np

from attention_lib.checks.values import as_arrays, bounded, parts, rounding, same


class Sink(io.TextIOBase):
    """Takes whatever is printed and keeps one thing of it: whether there was anything."""

    printed = False

    def write(self, text):
        """Forget the text: an answer that prints megabytes must not fill the memory."""
        self.printed = self.printed or bool(text)
        return len(text)


@contextmanager
def settings_kept():
    """Put back what an answer may change for all that runs later in the same process.

    These are the states of the random numbers, the handlers of the log, which would write to the
    `Sink` for ever, settings of NumPy and PyTorch, and which figures are open. An answer that
    replaces functions of NumPy or PyTorch is left alone.
    """
    torch, handlers = sys.modules.get("torch"), logging.root.handlers
    settings = [
        (random.setstate, random.getstate()),
        (np.random.set_state, np.random.get_state()),  # noqa: NPY002
        (lambda old: np.set_printoptions(**old), np.get_printoptions()),
        (lambda old: handlers.__setitem__(slice(None), old), handlers[:]),
    ]
    if torch:
        settings += [
            (torch.set_rng_state, torch.get_rng_state()),
            (torch.set_default_dtype, torch.get_default_dtype()),
            (torch.set_grad_enabled, torch.is_grad_enabled()),
            (torch.set_num_threads, torch.get_num_threads()),
            (partial(torch.set_autocast_enabled, "cpu"), torch.is_autocast_enabled("cpu")),
            (_set_device, torch.get_default_device()),
        ]
    if plt := sys.modules.get("matplotlib.pyplot"):
        settings += [(_close_figures, plt.get_fignums())]
    try:
        yield
    finally:
        for put, old in reversed(settings):  # the device first: random numbers are set on it
            put(old)


def _set_device(device):
    torch = sys.modules["torch"]
    if torch.get_default_device() != device:  # any but None slows every later call down
        torch.set_default_device(None if device.type == "cpu" else device)


def _close_figures(old):
    plt = sys.modules["matplotlib.pyplot"]
    for number in set(plt.get_fignums()) - set(old):
        plt.close(number)


@contextmanager
def seeded(number):
    """Random numbers that depend on `number` alone, and the old state again afterwards."""
    with settings_kept():
        random.seed(number)
        np.random.seed(number)  # noqa: NPY002
        if torch := sys.modules.get("torch"):
            torch.manual_seed(number)
        yield


class Outcome:
    """What one call did: the value or the error, and which arguments it changed.

    `made_nan` says that NumPy warned of an inf / inf or 0 / 0 on the way.
    """

    def __init__(self, function, *arguments, **named):
        given, given_named = deepcopy((arguments, named))
        self.value = self.error = None
        try:
            with (
                settings_kept(),
                warnings.catch_warnings(record=True) as caught,
                np.errstate(all="ignore", invalid="warn"),
            ):
                warnings.simplefilter("always")
                self.value = bounded(function(*given, **given_named))
        except (KeyboardInterrupt, bdb.BdbQuit):  # the reader stops it: that is no result of it
            raise KeyboardInterrupt from None
        except BaseException as error:  # sys.exit() and pytest.fail() are no Exceptions
            self.error = error
        self.made_nan = any("invalid value" in str(warning.message) for warning in caught)
        if type(self.value) is np.ndarray:  # the answer may use the same memory again
            self.value = self.value.copy()
        self.arrays = as_arrays(self.value)
        self.coarse = max(map(rounding, (*arguments, *parts(self.value), 0)))
        pairs = zip(map(as_arrays, arguments), map(as_arrays, given), strict=True)
        self.changed = [old is not None and not same(old, new, 0) for old, new in pairs]

    def broken(self):
        """Is there an error, NaN or infinity?"""
        finite = all(np.isfinite(array).all() for array in self.arrays or ())
        return self.error is not None or not finite

    def overflowed(self):
        """Is it broken, or nothing but zeros, as 1 / inf gives?"""
        return self.broken() or not any(array.any() for array in self.arrays or ())

    def agrees(self, other, tolerance):
        """Is it the same result? Breaking down in any way is one result."""
        if self.error is not None or other.error is not None:
            return self.broken() and other.broken()
        return same(self.arrays, other.arrays, max(tolerance, self.coarse, other.coarse))

    def refuses_like(self, right):
        """Is there the right kind of error, if there must be one?"""
        return right.error is None or isinstance(self.error, type(right.error))


class Watched:
    """An implementation that knows whether it was used: called, or asked for a method."""

    __name__ = "version"  # of one that has no name itself

    def __init__(self, implementation):
        # a copy: a test may call eval() on a layer, and the next test gets it as it was
        self.implementation, self.called = deepcopy(implementation), False
        update_wrapper(self, implementation, updated=())  # its name and signature, for messages

    def __getattr__(self, name):
        if name.startswith("__") or "implementation" not in vars(self):
            raise AttributeError(name)
        value = getattr(self.implementation, name)
        self.called = True
        return value

    def __call__(self, *args, **kwargs):
        self.called = True
        return self.implementation(*args, **kwargs)

    def __deepcopy__(self, memo=None):
        return self

    __copy__ = __deepcopy__  # a copy that is called counts, too


def changes(names, outcomes):
    """A list of one sentence about the arguments that calls have changed, or of none."""
    ever = [any(changed) for changed in zip_longest(*(o.changed for o in outcomes))]
    changed = " and ".join(name for name, c in zip(names, ever, strict=False) if c)
    if not changed:
        return []
    text = f"It changes its argument {changed}: whoever calls it loses the numbers. "
    return [text + "Work on a new array (x = x - 1 makes one, x -= 1 does not)."]
