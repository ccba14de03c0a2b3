"""What an answer returns, and how a message shows it. The engine alone uses this."""

import ast
import dis
import inspect
import math
import textwrap
import traceback
from contextlib import suppress
from decimal import Decimal
from numbers import Real

import numpy as np

# what a few roundings may change in a number of about 1; float64 stays far below every tolerance
_ROUNDING = {"float32": 2.5e-6, "float16": 4e-3, "bfloat16": 3e-2}
_OF_DOTS = (TypeError, AttributeError)  # what ... / 2 and ....shape raise
_FLOATS = ("bfloat16", "float16", "float32", "float64", "float128")  # from coarse to fine
_SHOWN = 48  # numbers of one input that a message prints
_SHOWN_PARTS = 12  # of a tuple; no right result has more
_MOST, _PARTS = 10**6, 10**3  # numbers and parts of one result; right ones have far less


def is_stub(candidate):
    """Is it `None`, `...`, or a function that does nothing but return one of them?"""
    code = _code(candidate)
    if code is None:
        return candidate is None or candidate is ...
    return all(
        step.opname.startswith(("LOAD_CO", "RETURN")) and step.argval in (None, ...)
        for step in dis.get_instructions(code)
        if step.opname not in ("RESUME", "NOP")
    )


def is_unfinished(error, value=None):
    """Did a call end at a place that the reader has still to fill in?"""
    if type(error) is NotImplementedError:  # raised by the reader, not by PyTorch
        last = traceback.extract_tb(error.__traceback__)[-1]
        return "raise" in last.line and "-packages" not in last.filename
    return value is ... or (isinstance(error, _OF_DOTS) and "ellipsis" in str(error))


def is_lazy(function):
    """Is it a generator or a coroutine, which a call only prepares?"""
    function = inspect.unwrap(function)
    return inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function)


def has_assert(function):
    """Is there an assert in the function's source?"""
    return any(isinstance(node, ast.Assert) for node in _nodes(function))


def idle_assert(function, silent):
    """Why a test can never fail, as its source shows: a verdict and a text, or None.

    `silent` says that it has not raised an AssertionError for any fault; if it has, a function that
    it calls may hold the assert.
    """
    nodes = _nodes(function)
    tests = [node.test for node in nodes if isinstance(node, ast.Assert)]
    if any(isinstance(test, ast.Tuple) and test.elts for test in tests):
        return "always true", (
            "assert (condition, message) never fails: the parentheses make a tuple, and a tuple "
            "counts as true. Write assert condition, message."
        )
    if silent and any(map(_swallows, nodes)):
        return "error caught", (
            "the test catches its own AssertionError: what ends there stops nobody. Let the error "
            "out of the test."
        )
    if silent and tests and all(isinstance(test, ast.Constant) for test in tests):
        return "always true", "the test asserts a constant, which says nothing about the function."
    raises = any(isinstance(node, ast.Assert | ast.Raise) for node in nodes)
    if silent and nodes and not raises and not any(_asserts(node, function) for node in nodes):
        return "no assert", (
            "the test catches nothing: there is no assert in it. A comparison that is only "
            "computed, printed or returned stops nobody."
        )
    return None


def _asserts(node, function):
    """Does a name in a test's source stand for something that asserts, whatever it is called?"""
    name = getattr(node, "id", getattr(node, "attr", ""))
    used = getattr(inspect.unwrap(function), "__globals__", {}).get(name)
    return "assert" in f"{name} {getattr(used, '__name__', '')}" or (
        inspect.isfunction(used) and has_assert(used)
    )


def parts(value):
    """The results of a call that returned a tuple, or its one result, as a list."""
    return list(value) if isinstance(value, tuple) else [value]


def as_array(value):
    """A float64 copy of a number, an array, a tensor or a list of numbers; else None."""
    try:
        if _is_tensor(value):
            value = value.detach().cpu().double().numpy()
        array = np.asarray(value)
        return array.astype(np.float64) if array.dtype.kind in "biuf" else None
    except Exception:  # whatever an object of the reader's own does when it is asked for numbers
        return None


def bounded(value):
    """The result of a call, or a MemoryError if copies of it for all inputs would take too much."""
    for part in parts(value):
        if (isinstance(part, np.ndarray) or _is_tensor(part)) and math.prod(part.shape) > _MOST:
            raise MemoryError(f"the result is far too large, of shape {tuple(part.shape)}")
    if len(parts(value)) > _PARTS:
        raise MemoryError(f"the result is far too large, a tuple of {len(value)}")
    return value


def plain(value):
    """A number of any type as a Python number, also within a tuple; anything else as it is."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if (_is_tensor(value) or isinstance(value, np.ndarray)) and value.shape == ():
        return value.item()
    if isinstance(value, Real | Decimal) and not isinstance(value, int | float | np.number):
        with suppress(OverflowError):  # a Fraction may be larger than any float
            return float(value)
    return value


def as_arrays(value):
    """`as_array` of every part, or None if one of them holds no numbers."""
    arrays = [as_array(part) for part in parts(value)]
    return None if any(array is None for array in arrays) else arrays


def same(one, other, tolerance):
    """Do two lists of arrays agree in shapes, numbers and places of NaN?"""
    if one is None or other is None or [a.shape for a in one] != [b.shape for b in other]:
        return False
    return all(
        np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )


def misfit(mine, right):
    """What is wrong with the form of a result: a verdict or None, what was expected and what came.

    A float dtype that is more precise than it must be is fine.
    """
    if kinds(mine) != kinds(right):
        return "type", f"expected {kinds(right)}, got {kinds(mine)}"
    for part, model in zip(parts(mine), parts(right), strict=True):
        got, want = _dtype(part), _dtype(model)
        fine = _FLOATS[_FLOATS.index(want) :] if want in _FLOATS else (want,)
        # of one number the type is free, unless it is coarse
        strict = getattr(model, "shape", ()) or (got in _ROUNDING and want in _FLOATS)
        if strict and got not in fine:
            names = [name for name in fine[:2] if name != "float128"]
            return "dtype", f"expected {' or '.join(names)}, got {got}"
    return None, ""


def rounding(value):
    """What a few roundings change in a number of about 1 of this dtype."""
    return _ROUNDING.get(_dtype(value), 0)


def kind(value):
    """What a value is, in words for a message."""
    if isinstance(value, bool | np.bool_):
        return "True or False"
    if _is_tensor(value):
        return "a torch tensor"
    if isinstance(value, int | float | np.number) or getattr(value, "shape", None) == ():
        return "a number"
    name = type_name(value)
    if name == "ndarray" and value.dtype.kind not in "biuf":
        return f"a NumPy array of dtype {value.dtype}"
    known = {"ndarray": "a NumPy array", "str": "a text", "Size": "a tuple", "NoneType": "None"}
    return known.get(name, f"a {name}")


def kinds(value):
    """`kind` of a value; of a tuple that of every part, too."""
    more = ["…"] if len(parts(value)) > _SHOWN_PARTS else []
    several = ", ".join([*map(kind, parts(value)[:_SHOWN_PARTS]), *more])
    return f"a tuple of {len(value)} ({several})" if isinstance(value, tuple) else several


def show(value, digits=4, limit=12):
    """A value in one short line; of an array with more numbers than `limit` only the shape."""
    if isinstance(value, Exception):
        return type_name(value)
    if isinstance(value, tuple) and len(value) > _SHOWN_PARTS:
        return f"<tuple of {len(value)}>"
    if isinstance(value, tuple):
        inner = ", ".join(show(part, digits, limit) for part in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    array = as_array(value)
    if array is None or isinstance(value, bool):
        return textwrap.shorten(repr(value), 60)
    if array.size > limit:
        return f"<{kind(value)[2:]} {array.shape}>"

    def number(x):
        return np.format_float_positional(x + 0.0, precision=digits, trim="-")

    text = np.array2string(array, separator=", ", formatter={"float_kind": number})
    return " ".join(text.split())


def show_arguments(given):
    """Names and arguments of a call: all their numbers, or their shapes if those are too many."""
    limit, more = _SHOWN, ""
    if count(given.values()) > limit:
        limit, more = 1, "\nexamine(…) in place of check(…) returns these numbers as .arguments."
    return ", ".join(f"{name} = {show(value, 7, limit)}" for name, value in given.items()) + more


def count(arguments):
    """How many numbers the arguments hold together."""
    return sum(np.size(as_array(x)) for x in arguments)


def show_both(want, got):
    """Expected and actual result in short; of large arrays the number that is most wrong."""
    one, other = as_array(want), as_array(got)
    place, shapes = "", ("", "")
    if one is not None and other is not None and one.shape != other.shape:
        shapes = f" of shape {one.shape}", f" of shape {other.shape}"
    elif one is not None and other is not None and one.size > 12:
        with np.errstate(invalid="ignore"):
            gaps = np.where(one == other, 0, np.nan_to_num(abs(one - other), nan=np.inf))
        where = tuple(int(i) for i in np.unravel_index(np.argmax(gaps), one.shape))
        want, got, place = one[where], other[where], f" at {list(where)}"
    digits = 4 if show(want) != show(got) else 10
    return show(want, digits) + place + shapes[0], show(got, digits) + shapes[1]


def show_error(error, candidate):
    """Type and message of an error; a second line shows where in the reader's code it came up."""
    message = textwrap.shorten(" ".join(str(error).split()), 240)
    text = f"{type_name(error)}: {message}" if message else type_name(error)
    code = _code(candidate)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if code and frame.filename == code.co_filename]
    return text + (f"\nIt comes from line {own[-1].lineno}: {own[-1].line}" if own else "")


def printable(text):
    """A text with control characters, and halves of a character, as escapes: no terminal obeys."""
    return "".join(
        x if x.isprintable() or x == "\n" else x.encode("unicode_escape").decode() for x in text
    )


def type_name(value):
    """The name of a value's type, at a length that fits a line."""
    return type(value).__name__[:50]


def _code(function):
    """The code that the reader wrote, below any decorator."""
    return getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None


def _nodes(function):
    """The syntax tree of the function that the reader wrote, or nothing without its source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return []
    own = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda))
    return [node for first in list(own)[:1] for node in ast.walk(first)]


def _swallows(node):
    """Does this except, or this suppress, take an AssertionError and end it?"""
    caught = ""
    if isinstance(node, ast.ExceptHandler):
        again = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
        caught = "" if again else ast.unparse(node.type or ast.Name("Exception"))
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
        caught = ast.unparse(node)
    return any(name in caught for name in ("AssertionError", "Exception"))


def _dtype(value):
    return str(getattr(value, "dtype", "")).removeprefix("torch.")


def _is_tensor(value):
    return type(value).__module__.startswith("torch") and hasattr(value, "detach")
