"""The exercises and their engine: what is accepted, what is named, what is said."""

import ast
import bdb
import copy
import inspect
import logging
import random
import subprocess
import sys
import tracemalloc
import warnings
from decimal import Decimal
from fractions import Fraction
from functools import partial, wraps
from importlib import import_module
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
import torch
from wrong_answers import classifier, lookup, single_head
from wrong_answers.lookup import typed

from attention_lib import checks
from attention_lib.checks import CHAPTERS, check, examine, hint
from attention_lib.checks.engine import Case, CatchFaults, Mistake, PredictValue, WriteFunction

CHAPTER_FOLDER = Path(__file__).parents[1] / "chapters"
EXERCISES = {
    name: exercise
    for chapter in CHAPTERS
    for name, exercise in import_module(f"attention_lib.checks.{chapter}").EXERCISES.items()
}
ANSWERS = {
    name: answers
    for chapter in CHAPTERS
    for name, answers in import_module(f"wrong_answers.{chapter}").ANSWERS.items()
}
FUNCTIONS = [name for name in EXERCISES if isinstance(EXERCISES[name], WriteFunction)]
TRUTH_VALUES = ["batch_mask", "one_mask", "decoding_mask"]  # functions whose results are bool
NUMBERS = [name for name in FUNCTIONS if name not in TRUTH_VALUES]
MISTAKES = [(name, mistake) for name in EXERCISES for mistake in EXERCISES[name].mistakes]

each_exercise = pytest.mark.parametrize("name", EXERCISES)
each_mistake = pytest.mark.parametrize(
    ("name", "mistake"), MISTAKES, ids=[f"{name}: {mistake.name}" for name, mistake in MISTAKES]
)

ROW = np.array([[1.0, 2.0, 4.0], [0.5, 0.0, -1.0]])


def right_softmax(scores):
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def own_solution(exercise):
    if isinstance(exercise, WriteFunction):
        return exercise.reference
    return exercise.answer() if isinstance(exercise, PredictValue) else None


def examined(name, answer):
    """The report on an answer, whose text must fit a page: 14 lines of 88 columns."""
    report = examine(name, answer)
    lines = report.text.splitlines()
    assert len(lines) <= 14
    assert max(map(len, lines)) <= 88
    return report


# ---------------------------------------------------------------------------- every exercise


def test_every_exercise_of_every_chapter_has_answers_written_for_it():
    assert set(ANSWERS) == set(EXERCISES)
    assert len(EXERCISES) == 91


@each_exercise
def test_right_answers_are_accepted_however_they_are_written(name):
    right = [*ANSWERS[name][0], own_solution(EXERCISES[name])]
    reports = [examined(name, answer) for answer in right if answer is not None]
    assert len(reports) >= 2
    assert [(r.verdict, r.mistake) for r in reports] == [("correct", None)] * len(reports)
    assert all(report.text.startswith(f"{name}: correct") for report in reports)


@each_exercise
def test_exercise_has_hints_and_at_least_four_mistakes_with_distinct_names(name):
    exercise = EXERCISES[name]
    names = [mistake.name for mistake in exercise.mistakes]
    assert len(names) >= 4
    assert len(set(names)) == len(names)
    assert len(exercise.hints) >= 2
    for text in [*exercise.hints, *(mistake.help for mistake in exercise.mistakes)]:
        assert text[-1] in ".?"
        assert "  " not in text


@each_mistake
def test_listed_mistake_is_recognised_by_its_own_name(name, mistake):
    for answer in mistake.answers:
        report = examined(name, answer)
        assert (report.verdict, report.mistake) == ("known mistake", mistake.name)
        assert mistake.name in report.text
        assert 'hint("' in report.text


@each_mistake
def test_listed_mistake_is_recognised_when_written_in_another_way(name, mistake):
    rewritten = ANSWERS[name][1][mistake.name]
    assert rewritten
    assert [examined(name, answer).mistake for answer in rewritten] == [mistake.name] * len(
        rewritten
    )


@each_exercise
def test_rewritten_mistakes_cover_the_list_and_nothing_else(name):
    assert set(ANSWERS[name][1]) == {mistake.name for mistake in EXERCISES[name].mistakes}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_listed_mistake_is_recognised_in_single_precision(name):
    for mistake in EXERCISES[name].mistakes:

        def answer(*arguments, _wrong=mistake.answers[0], **named):
            return np.asarray(_wrong(*arguments, **named), dtype=np.float32)

        assert examined(name, answer).mistake == mistake.name


@each_exercise
def test_wrong_answers_that_nobody_listed_are_refused_without_a_false_name(name):
    for number, answer in enumerate(ANSWERS[name][2]):
        report = examined(name, answer)
        assert (number, report.mistake) == (number, None)
        assert (number, report.verdict) != (number, "correct")


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_each_chapter_meets_many_wrong_answers_that_nobody_listed(chapter):
    answers = import_module(f"wrong_answers.{chapter}").ANSWERS
    assert sum(len(new) for _, _, new in answers.values()) >= 50
    assert all(len(new) >= 10 for _, _, new in answers.values())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_wrong_number_in_one_case_is_enough_to_be_refused(name):
    exercise = EXERCISES[name]
    for target in range(len(exercise.cases)):
        calls = iter(range(len(exercise.cases)))

        def answer(*arguments, _calls=calls, _target=target, **named):
            result = np.array(exercise.reference(*arguments, **named))
            if next(_calls) == _target:
                result.flat[-1] = (
                    ~result.flat[-1] if result.dtype == bool else result.flat[-1] + 1e-3
                )
            return result

        report = examined(name, answer)
        assert (target, report.verdict) == (target, "wrong")
        assert f"1 of {len(exercise.cases)} inputs fail." in report.text


@each_exercise
def test_no_wrong_prediction_gives_the_answer_away(name):
    exercise = EXERCISES[name]
    if isinstance(exercise, PredictValue):
        for value in ANSWERS[name][2]:
            text = examined(name, value).text.replace(repr(value), "")
            assert f"{exercise.answer()}" not in text


# ---------------------------------------------------------------------------- the chapters


def checked_cells(chapter, solutions):
    """The reports on what the chapter's exercise cells, or its solutions, hand to `check`."""
    (path,) = CHAPTER_FOLDER.glob(f"*_{chapter}.ipynb")
    sources = [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    reports, names = {}, {}
    for source in sources:
        imports = [
            n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom)
        ]
        exec("\n".join(map(ast.unparse, imports)), names)
    names["check"] = lambda name, answer: reports.update({name: examined(name, answer)})
    for source in sources:
        if 'check("' in source and source.startswith("# @title Solution") == solutions:
            typed(source, names)
    return reports


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_solutions_printed_in_the_chapter_are_correct(chapter):
    reports = checked_cells(chapter, solutions=True)
    assert list(reports) == list(import_module(f"attention_lib.checks.{chapter}").EXERCISES)
    assert {name: report.verdict for name, report in reports.items()} == dict.fromkeys(
        reports, "correct"
    )


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_exercises_printed_in_the_chapter_are_not_started(chapter):
    reports = checked_cells(chapter, solutions=False)
    assert list(reports) == list(import_module(f"attention_lib.checks.{chapter}").EXERCISES)
    assert {report.verdict for report in reports.values()} == {"not started"}


# ---------------------------------------------------------------------------- not started


def only_dots(scores): ...


def only_pass(scores):
    pass


def only_docstring(scores):
    """Softmax."""


def returns_dots(scores):
    return ...


def returns_none(scores):
    return None


def not_implemented(scores):
    raise NotImplementedError


def half_filled(scores):
    exponentials = np.exp(scores)
    total = ...
    return exponentials / total


STUBS = [..., None, only_dots, only_pass, only_docstring, returns_dots, returns_none]


def name_of(stub):
    """The same in every process: the workers of a parallel run must agree on it."""
    return getattr(stub, "__name__", str(stub))


@pytest.mark.parametrize("stub", [*STUBS, not_implemented, half_filled], ids=name_of)
def test_stub_is_not_called_wrong(stub):
    report = examine("softmax", stub)
    assert report.verdict == "not started"
    assert "not started yet" in report.text


@pytest.mark.parametrize("name", ["tie", "shapes", "softmax_test"])
def test_stubs_of_the_other_kinds_are_not_called_wrong(name):
    verdicts = {examine(name, stub).verdict for stub in [..., None, only_dots]}
    assert verdicts == {"not started"}


def test_test_that_is_not_implemented_is_not_started():
    assert examine("softmax_test", not_implemented).verdict == "not started"


# ---------------------------------------------------------------------------- generic words


def returns_nothing(scores):
    right_softmax(scores)


def misspelt(scores):
    exponentials = np.exp(scores)
    return exponentials / totl


WORDS = {
    "none": (returns_nothing, "it returns None. Is there a return at the end?"),
    "exception": (misspelt, "NameError: name 'totl' is not defined"),
    "shape": (lambda x: right_softmax(x)[..., :1], "(1,) in place of (2,)"),
    "nan": (lambda x: right_softmax(x) + np.nan * (x.max() > 3), "contains NaN"),
    "type": (lambda x: right_softmax(x).tolist(), "expected a NumPy array, got a list"),
    "dtype": (
        lambda x: right_softmax(x).astype(np.float32),
        "the dtype is not. For the input 'one key' expected float64, got float32.",
    ),
    "wrong": (lambda x: right_softmax(x).round(2), "not on the list of known mistakes"),
}


@pytest.mark.parametrize("verdict", WORDS)
def test_generic_verdict_has_its_own_words(verdict):
    answer, words = WORDS[verdict]
    report = examine("softmax", answer)
    assert (report.verdict, report.mistake) == (verdict, None)
    assert words in " ".join(report.text.split())
    others = {other: words for other, (_, words) in WORDS.items() if other != verdict}
    assert not [other for other, text in others.items() if text in report.text]


def test_result_of_another_kind_is_described():
    words = {
        "a tuple of 2 (a NumPy array, a NumPy array), not a NumPy array": lambda x: (x, x),
        "it returns a tuple of 1 (a NumPy array), not a NumPy array": lambda x: (x,),
        "it returns a NumPy array of dtype complex128, not of floats.": lambda x: x * 1j,
        "it returns a NumPy array of dtype object, not of floats.": lambda x: x.astype(object),
    }
    for text, answer in words.items():
        report = examine("softmax", answer)
        assert report.verdict == "type"
        assert text in " ".join(report.text.split())


@pytest.mark.parametrize("name", NUMBERS)
def test_dtype_may_be_more_precise_than_the_inputs_but_not_less(name):
    def cast(dtype):
        def answer(*arguments, **named):
            return np.asarray(EXERCISES[name].reference(*arguments, **named)).astype(dtype)

        return answer

    assert examined(name, cast(np.float64)).verdict == "correct"
    assert examined(name, cast(np.longdouble)).verdict == "correct"
    assert examined(name, cast(np.float32)).verdict == "dtype"
    assert examined(name, cast(int)).verdict in ("wrong", "known mistake")


@pytest.mark.parametrize("name", TRUTH_VALUES)
def test_truth_values_must_be_bool(name):
    for dtype in float, int, np.float32:

        def answer(*arguments, _dtype=dtype):
            return EXERCISES[name].reference(*arguments).astype(_dtype)

        report = examined(name, answer)
        assert report.verdict == "dtype"
        assert "expected bool, got" in " ".join(report.text.split())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_smallest_failing_input_can_be_copied_from_the_message(name):
    for mistake in EXERCISES[name].mistakes:
        report = examined(name, mistake.answers[0])
        line = " ".join(report.text.split()).split("): ", 1)[1].split(" expected ")[0]
        if sum(map(np.size, report.arguments.values())) > 48:
            assert "returns these numbers as .arguments" in line
        else:
            shown = eval(f"dict({line})")
            assert list(shown) == list(report.arguments)
            for key, value in report.arguments.items():
                np.testing.assert_array_equal(
                    np.asarray(shown[key], value.dtype) if hasattr(value, "dtype") else shown[key],
                    value,
                )


def test_wrong_shape_is_shown_with_the_values():
    report = examine("nearest_fault", lambda q, k, v: v[np.argmax(q @ k.T)])
    assert report.mistake == "one argmax over all scores"
    assert "expected [10] of shape (1,), got 10 of shape ()" in report.text


def test_long_error_is_shown_to_its_end():
    case = Case("two by three", np.ones((2, 3)))
    exercise = WriteFunction(lambda x: x @ x.T, (case,), (), ())
    assert "(size 2 is different from 3)" in exercise.examine(lambda x: x @ x).text


def test_input_of_many_numbers_is_described_and_handed_out():
    large = np.zeros((7, 7))
    exercise = WriteFunction(lambda x: x + 1, (Case("seven", large),), (), ())
    report = exercise.examine(lambda x: x)
    assert "x = <NumPy array (7, 7)>" in report.text
    assert "examine(…) in place of check(…) returns these numbers as .arguments." in report.text
    assert report.arguments["x"].tolist() == large.tolist()


def test_parameter_of_another_name_cannot_be_called_by_name():
    report = examine(
        "soft_lookup", lambda query, keys, values, T=1.0: right_softmax(query @ keys.T / T) @ values
    )
    assert report.verdict == "exception"
    assert "unexpected keyword argument 'temperature'" in " ".join(report.text.split())


def test_result_that_is_no_number_at_all_is_a_wrong_type():
    for value in [{"a": 1}, "0.5", [[1, 2], [3]], (right_softmax,), 1j]:
        report = examine("softmax", lambda x, _value=value: (x, _value)[1])
        assert report.verdict == "type", value


def test_value_in_place_of_the_function_is_told_apart():
    report = examine("softmax", right_softmax(ROW))
    assert report.verdict == "type"
    assert "the function itself" in report.text


def test_exception_shows_the_line_of_the_readers_code():
    text = examine("softmax", misspelt).text
    line = misspelt.__code__.co_firstlineno + 2
    assert f"It comes from line {line}: return exponentials / totl" in text


def one_parameter(query):
    print(query)


def test_wrong_number_of_parameters_is_an_exception_in_words():
    report = examine("soft_lookup", one_parameter)
    assert report.verdict == "exception"
    assert "takes 1 positional argument but 3 were given" in " ".join(report.text.split())


def test_failure_shows_the_smallest_input_with_expected_and_actual_values():
    text = examine("softmax", lambda x: right_softmax(x) ** 2).text
    assert "(two keys): scores = [1, 2]" in text
    assert "expected [0.2689, 0.7311], got [0.0723, 0.5344]" in text
    assert "20 of 24 inputs fail." in text


def test_difference_behind_the_fourth_decimal_is_shown():
    text = examine("softmax", lambda x: right_softmax(x) + 1e-5).text
    assert "expected [1], got [1.00001]" in text


def test_large_result_shows_the_first_number_that_differs():
    def answer(weights, values):
        result = weights @ values
        if result.size > 12:
            result[13] += 1
        return result

    rng = np.random.default_rng(0)
    wide = Case("wide", rng.normal(size=3), np.zeros((3, 20)))
    exercise = WriteFunction(lambda weights, values: weights @ values, (wide,), (), ())
    text = exercise.examine(answer).text
    assert "expected 0 at [13], got 1" in text
    assert "values = <NumPy array (3, 20)>" in text


def subtracts_in_place(scores):
    scores -= scores.max(axis=-1, keepdims=True)
    return right_softmax(scores)


def test_changed_argument_is_named():
    report = examine("softmax", subtracts_in_place)
    assert report.verdict == "argument changed"
    assert "It changes its argument scores" in report.text

    def sorts_keys(query, keys, values):
        result = values[(query @ keys.T).argmax(axis=1)]
        keys.sort(axis=0)
        return result

    assert "It changes its argument keys" in examine("nearest_fault", sorts_keys).text


def test_known_mistake_that_also_changes_its_argument_hears_both():
    def both(scores):
        scores *= 2
        return np.exp(scores / 2 - scores.max() / 2) / np.exp(scores / 2 - scores.max() / 2).sum()

    report = examine("softmax", both)
    assert report.mistake == "softmax over all entries at once"
    assert "It changes its argument scores" in report.text


def test_mistake_that_also_overflows_keeps_its_name_and_hears_both():
    report = examine("softmax", lambda x: np.exp(x) / np.exp(x).sum(axis=0))
    assert report.mistake == "softmax over the first axis"
    assert "Besides, it breaks for: large scores (overflow)" in report.text


def test_overflow_alone_is_recognised_though_it_shows_on_few_inputs():
    report = examine("softmax", lambda x: np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True))
    assert report.mistake == "no maximum subtracted"
    assert "8 of 24 inputs fail." in report.text


def test_finite_but_wrong_large_inputs_do_not_pass_for_an_overflow():
    def clipped_first_axis(x):
        e = np.exp(np.clip(x, -300, 300))
        return e / e.sum(axis=0)

    assert examine("softmax", clipped_first_axis).mistake is None


def test_extreme_inputs_alone_name_a_mistake_only_if_all_of_them_agree():
    def one_maximum_and_a_refusal(x):
        if abs(x).max() == 1000:
            raise ValueError("too large")
        e = np.exp(x - x.max())
        return e / e.sum(axis=-1, keepdims=True)

    assert examine("softmax", one_maximum_and_a_refusal).mistake is None


def test_warnings_of_an_answer_are_not_its_fault():
    def warns(scores):
        warnings.warn("a warning is an error in these tests", stacklevel=1)
        return right_softmax(scores)

    assert examine("softmax", warns).verdict == "correct"


def test_plain_float_is_fine_for_a_scalar():
    def answer(query, keys, values, temperature=1.0):
        result = right_softmax(query @ keys.T / temperature) @ values
        return float(result) if result.ndim == 0 else result

    assert examine("soft_lookup", answer).verdict == "correct"


def test_decorated_answers_are_looked_at_below_the_decorator():
    def decorated(function):
        @wraps(function)
        def wrapper(*arguments):
            return function(*arguments)

        return wrapper

    assert examine("softmax", decorated(only_dots)).verdict == "not started"
    assert examine("softmax", decorated(right_softmax)).verdict == "correct"
    no_assert = decorated(lambda softmax: softmax(ROW).shape == (2, 3))
    assert examine("softmax_test", no_assert).verdict == "no assert"


def test_answer_that_prints_is_fine_and_silent(capsys):
    def prints(scores):
        print("shape", scores.shape)
        return right_softmax(scores)

    check("softmax", prints)
    text = capsys.readouterr().out
    assert text.startswith("softmax: correct.")
    assert text.endswith("\nIt runs on many inputs here, so what it prints is not shown.\n")
    assert "shape (" not in text


# ---------------------------------------------------------------------------- the engine itself


def pair(x):
    return x.softmax(dim=-1), x.sum()


def tensor_exercise(dtype):
    x = torch.tensor([[0.0, 1.0], [2.0, -1.0]], dtype=dtype)
    return WriteFunction(
        pair,
        (Case("one row", x[:1]), Case("two rows", x)),
        (Mistake("wrong axis", "Look at the axis.", lambda x: (x.softmax(dim=0), x.sum())),),
        ("A hint.",),
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_tensors_and_tuples_are_compared_as_finely_as_their_dtype_allows(dtype):
    exercise = tensor_exercise(dtype)

    def by_hand(x):
        e = torch.exp(x)
        return e / e.sum(-1, keepdim=True), x.sum()

    def slightly_off(x):
        return x.softmax(dim=-1) * 1.3, x.sum()

    assert exercise.examine(by_hand).verdict == "correct"
    assert exercise.examine(slightly_off).verdict == "wrong"
    assert exercise.examine(lambda x: (x.mT.softmax(-1).mT, x.sum())).mistake == "wrong axis"


def test_tensors_in_words():
    exercise = tensor_exercise(torch.float32)
    cases = {
        "dtype": (lambda x: pair(x.half()), "expected float32 or float64, got float16"),
        "type": (
            lambda x: tuple(part.numpy() for part in pair(x)),
            "expected a tuple of 2 (a torch tensor, a torch tensor), "
            "got a tuple of 2 (a NumPy array, a number)",
        ),
        "argument changed": (lambda x: (x.sub_(1).softmax(-1), x.sum() + x.numel()), "argument x"),
    }
    for verdict, (answer, words) in cases.items():
        report = exercise.examine(answer)
        assert report.verdict == verdict
        assert words in report.text
    report = exercise.examine(lambda x: x.softmax(dim=-1))
    assert (report.verdict, "a torch tensor, a torch tensor" in report.text) == ("type", True)


def test_gradients_do_not_disturb_the_comparison():
    assert tensor_exercise(torch.float64).examine(lambda x: pair(x.requires_grad_())).verdict == (
        "correct"
    )


def test_exercise_may_have_another_tolerance():
    case = (Case("float32", np.float32([1, 2])),)
    loose = WriteFunction(right_softmax, case, (), (), tolerance=0.01)
    assert loose.examine(lambda x: right_softmax(x.astype(float)) + 0.005).verdict == "correct"
    assert loose.examine(lambda x: right_softmax(x) + 0.05).verdict == "wrong"


def test_cases_are_tried_from_small_to_large_and_extreme_ones_last():
    x = np.ones(3)
    cases = Case("three", x), Case("large", x[:1], extreme=True), Case("two", x[:2])
    exercise = WriteFunction(lambda x: x, cases, (), ())
    assert exercise.examine(lambda x: x.copy()).text == (
        "correct. 3 inputs tried, among them two, three, large."
    )


def test_refusal_can_be_asked_for_too():
    def refuses_negative(x):
        if x < 0:
            raise ValueError("x must not be negative")
        return x**0.5

    cases = Case("four", 4.0), Case("a negative number", -1.0)
    exercise = WriteFunction(refuses_negative, cases, (), ())
    assert exercise.examine(refuses_negative).verdict == "correct"
    report = exercise.examine(lambda x: abs(x) ** 0.5)
    assert report.verdict == "wrong"
    assert "(a negative number): x = -1" in report.text
    assert "expected ValueError, got 1" in report.text

    def refuses_with_another_error(x):
        if x < 0:
            raise KeyError(x)
        return x**0.5

    report = exercise.examine(refuses_with_another_error)
    assert report.verdict == "exception"
    assert "expected ValueError, got KeyError" in report.text


def test_text_and_truth_values_can_be_predicted():
    row = PredictValue(
        lambda: "rows", (Mistake("c", "No.", "columns"),), ("h",), choices=("rows", "columns")
    )
    assert row.examine("rows").verdict == "correct"
    assert row.examine("columns").mistake == "c"
    assert row.examine("diagonal").text == "choose one of: rows, columns."
    truth = PredictValue(lambda: True, (), ())
    assert [truth.examine(value).verdict for value in (True, np.True_, False, 1)] == [
        "correct", "correct", "wrong", "type"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("tie", "15", "the answer must be a number; this is a text."),
        ("tie", (15,), "the answer must be a number; this is a tuple."),
        ("shapes", [2, 6, 5], "the answer must be a tuple; this is a list."),
        ("shapes", 60, "the answer must be a tuple; this is a number."),
    ],
)
def test_prediction_of_a_wrong_type_hears_which_type_is_meant(name, value, words):
    report = examine(name, value)
    assert report.verdict == "type"
    assert words in report.text


# ---------------------------------------------------------------------------- tests as answers


def verdict_and_words(name, test):
    report = examine(name, test)
    return report.verdict, " ".join(report.text.split())


def test_test_that_rejects_a_right_implementation_hears_which_and_why():
    def exact(softmax):
        assert softmax([0.0, 1.0])[0] == 0.26894142, "first weight"

    verdict, text = verdict_and_words("softmax_test", exact)
    assert verdict == "rejects a right one"
    assert "'the library's': AssertionError: first weight" in text
    assert "It rejects every right version" in text
    assert "tolerance" not in text


def test_exact_comparison_is_told_apart_from_wrong_numbers():
    for name, test in [
        ("softmax_test", lookup.exact_equality),
        ("attention_test", single_head.attention_exact),
    ]:
        verdict, text = verdict_and_words(name, test)
        assert verdict == "rejects a right one"
        assert "the last digits, compare with a tolerance" in text


@pytest.mark.parametrize(
    ("name", "test", "fault"),
    [
        ("softmax_test", lookup.expects_the_first_axis, "softmax over the first axis"),
        ("attention_test", single_head.attention_columns_expected, "softmax over the queries"),
        ("attention_test", single_head.attention_unscaled_expected, "no scale"),
    ],
)
def test_test_whose_expected_numbers_are_those_of_a_fault_hears_which(name, test, fault):
    verdict, text = verdict_and_words(name, test)
    assert verdict == "rejects a right one"
    assert f"What it expects is the result of a fault: {fault}." in text


def test_message_of_a_failed_comparison_is_shown():
    _, text = verdict_and_words("softmax_test", lookup.expects_the_first_axis)
    assert "wrong weights Mismatched elements: 6 / 6" in text


@pytest.mark.parametrize(
    ("name", "test", "verdict", "words"),
    [
        ("softmax_test", lookup.swallows, "error caught", "catches its own AssertionError"),
        ("softmax_test", lookup.swallows_after_the_call, "error caught", "stops nobody"),
        ("attention_test", single_head.attention_swallows, "error caught", "out of the test"),
        ("attention_test", single_head.attention_suppresses, "error caught", "out of the test"),
        ("softmax_test", lookup.tuple_assert, "always true", "the parentheses make a tuple"),
        ("attention_test", single_head.attention_tuple, "always true", "make a tuple"),
        ("softmax_test", lookup.asserts_true, "always true", "asserts a constant"),
        ("attention_test", single_head.attention_true, "always true", "asserts a constant"),
        ("softmax_test", lookup.asserts_true_alone, "never called", "never calls the function"),
        ("softmax_test", lookup.raises_value_error, "another error", "an AssertionError"),
        ("attention_test", single_head.attention_value_error, "another error", "as assert raises"),
    ],
)
def test_assert_that_cannot_fail_is_named(name, test, verdict, words):
    got, text = verdict_and_words(name, test)
    assert (got, words in text) == (verdict, True)


def test_except_that_raises_again_or_takes_another_error_is_fine():
    def raises_again(softmax):
        try:
            lookup.good_test(softmax)
        except AssertionError as error:
            raise AssertionError("wrong") from error

    def tries_a_text(softmax):
        try:
            softmax("scores")
        except ValueError as error:
            print(error)
        lookup.good_test(softmax)

    def weak(softmax):
        try:
            softmax("scores")
        except ValueError as error:
            print(error)
        lookup.only_small(softmax)

    assert examine("softmax_test", raises_again).verdict == "correct"
    assert examine("softmax_test", tries_a_text).verdict == "correct"
    assert examine("softmax_test", weak).mistake == "only small scores"


def test_assert_in_a_function_that_the_test_calls_counts():
    def calls_a_helper(softmax):
        lookup.only_small(softmax)

    assert examine("softmax_test", calls_a_helper).mistake == "only small scores"


def test_idle_assert_beside_a_real_one_is_not_blamed():
    def shape_and_true(softmax):
        assert True
        assert np.shape(softmax(ROW[0])) == (3,)

    assert examine("softmax_test", shape_and_true).mistake == "an assertion that no fault breaks"


def test_test_without_source_is_judged_by_what_it_does():
    names = {}
    exec("def test(softmax):\n    softmax([1.0])\n    assert True", names)
    assert examine("softmax_test", names["test"]).mistake == "an assertion that no fault breaks"


@pytest.mark.parametrize(
    ("name", "test"),
    [
        ("softmax_test", lookup.stops_before_the_call),
        ("attention_test", single_head.attention_stops_before_the_call),
    ],
)
def test_test_that_fails_before_its_first_call_hears_its_own_error(name, test):
    verdict, text = verdict_and_words(name, test)
    assert verdict == "exception"
    assert "ValueError: matmul: Input operand 1" in text
    assert "It comes from line" in text


def test_test_without_assert_hears_it():
    verdict, text = verdict_and_words("softmax_test", lambda softmax: softmax(ROW).shape == (2, 3))
    assert verdict == "no assert"
    assert "there is no assert in it" in text


close = np.testing.assert_allclose


def same_shape(mine, theirs):
    assert np.shape(mine) == np.shape(theirs)


@pytest.mark.parametrize("compare", ["alias", "helper"])
def test_assert_behind_another_name_counts(compare):
    def by_alias(softmax):
        close(softmax(ROW) > -1, True)

    def by_helper(softmax):
        same_shape(softmax(ROW), ROW)

    test = {"alias": by_alias, "helper": by_helper}[compare]
    assert examine("softmax_test", test).verdict != "no assert"


def test_check_leaves_the_random_numbers_of_the_reader_alone():
    program = (
        "import torch; from attention_lib.checks import check; torch.manual_seed(0);"
        "check('heads_test', lambda layer: layer(torch.randn(2, 3, 8))); print(torch.rand(1))"
    )
    alone = "import torch; torch.manual_seed(0); print(torch.rand(1))"
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for code in (program, alone)
    ]
    assert runs[0].stdout.splitlines()[-1] == runs[1].stdout.splitlines()[-1]


def test_raise_counts_as_an_assert():
    def raises(softmax):
        if softmax(ROW[0]).shape != (3,):
            raise ValueError("the shape is wrong")

    assert examine("softmax_test", raises).mistake == "an assertion that no fault breaks"


def test_test_that_never_calls_hears_it():
    def idle(softmax):
        assert ROW.shape == (2, 3)

    assert verdict_and_words("softmax_test", idle)[0] == "never called"


def test_test_that_fails_by_itself_is_told_apart_from_a_rejection():
    verdict, text = verdict_and_words("softmax_test", lambda softmax: softmax(ROW, ROW))
    assert verdict == "exception"
    assert "the test itself fails" in text


def test_weak_test_hears_what_it_lets_through_and_how_to_catch_one():
    def values_between_0_and_1(softmax):
        assert ((softmax(ROW) >= 0) & (softmax(ROW) <= 1)).all()

    verdict, text = verdict_and_words("softmax_test", values_between_0_and_1)
    assert verdict == "lets a fault through"
    assert "It lets through 10 of 12 faults: softmax over the first axis" in text
    assert "Most pass. Compare numbers, all of them, with a result that you know" in text

    def right_but_for_large_scores(softmax):
        lookup.only_small_of_three_axes(softmax)
        assert np.allclose(softmax(lookup.APART), 1)

    verdict, text = verdict_and_words("softmax_test", right_but_for_large_scores)
    assert "It lets through 1 of 12 faults: the minimum subtracted." in text


def test_test_that_compares_nothing_hears_no_advice_about_sizes():
    verdict, text = verdict_and_words("attention_test", single_head.attention_between)
    assert (verdict, "Most pass. Compare numbers" in text) == ("lets a fault through", True)
    assert "width d_k" not in text


@pytest.mark.parametrize("test", [lookup.expects_nan, lookup.expects_nan_in_one_line])
def test_test_whose_own_expected_numbers_are_nan_hears_it(test):
    verdict, text = verdict_and_words("softmax_test", test)
    assert verdict == "rejects a right one"
    assert "Your own expected numbers are NaN: your test computes inf / inf" in text


def test_test_that_wants_every_weight_above_0_hears_that_tiny_ones_are_0():
    verdict, text = verdict_and_words("softmax_test", lookup.demands_positive_weights_of_one_row)
    assert verdict == "rejects a right one"
    assert "very small weights round to 0" in text
    assert "the result of a fault" not in text


def test_test_of_attention_may_not_ask_for_more_than_arrays_of_one_sentence():
    query, key, value = single_head.inputs(4, 4, 4, 4)
    verdict, text = verdict_and_words(
        "attention_test",
        lambda attention: single_head.agrees_in_a_batch(attention, query, key, value),
    )
    assert verdict == "exception"
    assert "with a right version, 'for arrays (L, d), (S, d), (S, v)'" in text


def test_result_rounded_by_a_coarse_dtype_hears_of_its_dtype():
    def half(query, keys, values):
        return (values[(query @ keys.T).argmax(-1)] * 1.01).astype(np.float16)

    report = examine("nearest_fault", half)
    assert report.verdict == "dtype"
    assert "its dtype is coarse (expected float64, got float16)" in " ".join(report.text.split())


def test_error_is_shown_beside_the_mistake_that_it_is_taken_for():
    def three_axes(x, gain, bias, eps):
        _, _, _ = x.shape
        return EXERCISES["layer_norm"].reference(x, gain, bias, eps)

    report = examine("layer_norm", three_axes)
    assert report.mistake == "not the last axis for every shape"
    text = " ".join(report.text.split())
    assert "The error: ValueError: not enough values to unpack (expected 3, got 1)" in text
    assert "It comes from line" in text


def test_verdict_on_a_test_that_draws_does_not_depend_on_the_state_before():
    drawn, texts = [], set()

    def one_place(rotate):
        place = random.randrange(3), np.random.randint(6)  # noqa: NPY002
        drawn.append((*place, torch.rand(1).item()))
        x = np.arange(24.0).reshape(4, 6) + 1
        right = EXERCISES["rotary_test"].right["sines and cosines"](x)
        assert np.isclose(rotate(x)[place[:2]], right[place[:2]])

    for seed in range(4):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        state = random.getstate(), torch.get_rng_state()
        report = examine("rotary_test", one_place)
        texts.add(report.text)
        assert (random.getstate(), torch.get_rng_state().tolist()) == (state[0], state[1].tolist())
    assert report.verdict == "lets a fault through"
    assert len(texts) == 1
    assert len(set(drawn)) > 10  # and each version meets other draws


def test_function_in_place_of_a_test_hears_what_a_test_gets():
    def turned(x):
        return x[:, 0::2]

    report = examine("rotary_test", turned)
    assert report.verdict == "exception"
    assert "What your test gets is a function" in " ".join(report.text.split())


def test_number_close_to_the_right_one_is_shown_with_its_digits():
    assert "551.9999999 is wrong" in examine("feedforward_parameters", 551.9999999).text
    assert "552.000000001 is wrong" in examine("feedforward_parameters", 552 + 1e-9).text


def test_result_that_is_rounded_and_of_another_type_hears_of_both():
    def rounded(*sizes):
        return (EXERCISES["core_flops"].reference(*sizes) * 1.001).tolist()

    report = examine("core_flops", rounded)
    assert report.verdict == "type"
    text = " ".join(report.text.split())
    assert "as if rounded: besides, the type is wrong (expected a NumPy array, got a list)" in text


def test_plain_case_is_shown_before_odd_ones():
    text = examine("soft_lookup", lambda query, keys, values, temperature=1.0: (
        right_softmax(query @ keys.T) @ values
    )).text  # fmt: skip
    text = " ".join(text.split())
    assert "(temperature 2): query = [1, 0], keys = [[1, 0], [0, 1]], values" in text


def test_every_fault_is_faulty_and_can_be_caught_alone():
    for name in ("softmax_test", "attention_test"):
        exercise, (good, *_) = EXERCISES[name], ANSWERS[name][0]
        right, faulty, called = exercise._try(good)
        assert called
        assert right == [None] * len(exercise.right)
        assert len(faulty) == len(exercise.faults)
        assert all(faulty)


def test_fault_that_only_some_answers_catch_does_not_count_in_a_diagnosis():
    def even(test_input):
        return lambda function: _assert(function(test_input) % 2 == 0)

    def _assert(condition):
        assert condition

    exercise = CatchFaults(
        {"right": lambda x: 2 * x},
        (Mistake("one", "1", lambda x: x), Mistake("two", "2", lambda x: 4 * x)),
        (Mistake("only parity", "Parity.", even(1), even(2)),),
        (),
    )
    assert exercise.examine(even(3)).mistake == "only parity"
    assert exercise.examine(lambda f: _assert(f(1) == 2)).verdict == "correct"


# ---------------------------------------------------------------------------- hostile answers


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_megabytes_of_print_are_neither_shown_nor_kept(stream, capsys):
    def prints(scores):
        print("x" * 10**6, file=getattr(sys, stream))
        return right_softmax(scores)

    tracemalloc.start()
    check("softmax", prints)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6
    shown = capsys.readouterr()
    assert len(shown.out) < 1000
    assert shown.err == ""


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, pytest.fail.Exception])
def test_error_that_is_no_exception_is_an_answer(error):
    def leaves(argument):
        raise error("enough")

    report = examine("softmax", leaves)
    assert report.verdict == "exception"
    assert f"it raises {error.__name__}: enough" in report.text
    assert examine("softmax_test", leaves).verdict == "exception"


def test_interrupt_stops_the_check_and_printing_works_again(capsys):
    def interrupts(scores):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("softmax", interrupts)
    print("seen")
    assert capsys.readouterr().out == "seen\n"


def test_memory_that_runs_out_is_tried_once():
    calls = []

    def greedy(scores):
        calls.append(1)
        raise MemoryError

    assert "it raises MemoryError" in examine("softmax", greedy).text
    assert len(calls) == 1


def test_endless_recursion_is_an_answer():
    def recursive(scores):
        return recursive(scores)

    assert "RecursionError" in examine("softmax", recursive).text


class Liar:
    """Equal to everything, and greater, and true."""

    def __eq__(self, other):
        return True

    __hash__ = None
    __gt__ = __lt__ = __eq__


class LyingArray(np.ndarray):
    """Numbers that call themselves equal to all others."""

    def __eq__(self, other):
        return np.ones(self.shape, bool)

    __hash__ = None

    def __array_ufunc__(self, *arguments, **named):
        return np.zeros(())


class Explosive:
    """Raises when it is asked for numbers."""

    def __array__(self, *arguments, **named):
        raise RuntimeError("no")


@pytest.mark.parametrize("value", [Liar(), Explosive(), [torch.ones(2, requires_grad=True)]])
def test_object_of_an_odd_kind_is_a_wrong_type(value):
    for name in "softmax", "soft_lookup":
        assert examine(name, lambda *arguments, **named: value).verdict == "type"
    for name in "tie", "shapes":
        assert examine(name, value).verdict == "type"


def test_lying_subclass_is_looked_at_without_its_lies():
    report = examine("softmax", lambda x: (right_softmax(x) + 1).view(LyingArray))
    assert report.verdict == "wrong"
    report = examine("softmax", lambda x: right_softmax(x).view(LyingArray))
    assert report.verdict == "type"


@pytest.mark.parametrize("kind", [np.matrix, np.ma.MaskedArray])
def test_subclass_of_an_array_is_a_wrong_type(kind):
    exercise = WriteFunction(lambda x: x + 1, (Case("two by two", np.eye(2)),), (), ())
    report = exercise.examine(lambda x: (x + 1).view(kind))
    assert report.verdict == "type"
    assert kind.__name__ in report.text


def generator(scores):
    yield scores


async def coroutine(softmax):
    assert softmax(ROW) is None


def test_generator_is_no_result_and_no_test():
    assert "it returns a generator" in examine("softmax", generator).text
    report = examine("softmax_test", generator)
    assert report.verdict == "never run"
    assert "with yield, or an async one, runs none of its lines" in report.text


@pytest.mark.filterwarnings("ignore:coroutine")
def test_coroutine_is_no_test():
    assert examine("softmax_test", coroutine).verdict == "never run"


def test_view_or_buffer_that_changes_later_is_compared_as_it_was():
    buffer = np.zeros(100)

    def reuses(scores):
        result = buffer[: scores.size].reshape(scores.shape)
        result[...] = right_softmax(scores)
        return result

    assert examine("softmax", reuses).verdict == "correct"
    exercise = WriteFunction(lambda x: x[::-1].copy(), (Case("three", np.arange(3.0)),), (), ())
    assert exercise.examine(lambda x: x[::-1]).verdict == "correct"


def test_argument_given_by_name_is_a_copy_too():
    weights = np.ones(2)
    case = Case("by name", np.ones(2), weights=weights)
    exercise = WriteFunction(lambda x, weights: x * weights, (case,), (), ())

    def doubles(x, weights):
        weights *= 2
        return x * weights / 2

    assert exercise.examine(doubles).verdict == "correct"
    assert weights.tolist() == [1, 1]


def test_global_settings_are_put_back():
    def meddles(scores):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float16)
        torch.set_grad_enabled(False)
        torch.autocast("cpu").__enter__()
        np.seterr(all="ignore")
        np.set_printoptions(precision=1)
        return right_softmax(scores)

    def state():
        numbers = np.random.get_state()[1].tolist()  # noqa: NPY002
        settings = np.geterr(), torch.get_default_dtype(), torch.is_grad_enabled()
        settings += torch.is_autocast_enabled("cpu"), np.get_printoptions()
        return random.getstate(), numbers, torch.get_rng_state().tolist(), settings

    before = state()
    assert examine("softmax", meddles).verdict == "correct"
    assert state() == before


def test_right_results_are_computed_before_the_answer_runs():
    order = []
    exercise = WriteFunction(
        lambda x: (order.append("right"), x)[1], (Case("one", np.ones(1)),), (), ()
    )
    exercise.examine(lambda x: (order.append("answer"), x.copy())[1])
    assert order == ["right", "answer"]


@pytest.mark.parametrize(
    "number",
    [
        torch.tensor(15), torch.tensor(15.0, requires_grad=True), np.array(15), np.float32(15),
        Fraction(30, 2), Decimal(15),
    ],
    ids=repr,
)  # fmt: skip
def test_number_of_any_type_is_a_number(number):
    assert examine("tie", number).verdict == "correct"
    assert examine("tie", number + 5).mistake == "the last of the tied keys wins"


def test_numbers_of_any_type_make_a_tuple():
    assert examine("shapes", (torch.tensor(2), np.array(6), Fraction(5))).verdict == "correct"
    assert examine("shapes", torch.Size([2, 6, 5])).verdict == "correct"


@pytest.mark.parametrize(
    "value", [torch.tensor([15.0]), np.array([15]), np.array(True), 15 + 0j, Fraction(10**400)]
)
def test_what_is_no_single_real_number_is_a_wrong_type(value):
    assert examine("tie", value).verdict == "type"


class Layer(torch.nn.Module):
    """Twice the input, and in training with noise, so that a test must call `eval`."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x + self.training


def test_layer_can_be_tested_and_is_fresh_for_every_test():
    layer = Layer(2)
    exercise = CatchFaults({"right": layer}, (Mistake("three", "3.", Layer(3)),), (), ())

    def uses_eval(layer):
        assert layer.eval()(1) == 2
        assert layer.factor == 2

    assert exercise.examine(uses_eval).verdict == "correct"
    assert layer.training
    assert exercise.examine(lambda layer: None).verdict == "never called"


def equals(*wanted):
    def test(function):
        assert all(function(x) == 2 * x for x in wanted)

    return test


def test_test_that_misses_only_a_variant_hears_which():
    exercise = CatchFaults(
        {"right": lambda x: 2 * x},
        (
            Mistake("shown", "It adds.", lambda x: x + 2),
            Mistake("wrong at 0", "Try 0.", lambda x: 2 * x or 1),
            Mistake("wrong below 0", "Try a negative number.", lambda x: 2 * abs(x)),
        ),
        (),
        (),
        shown=1,
    )
    assert exercise.examine(equals(1, 0, -1)).verdict == "correct"
    report = exercise.examine(equals(1, 0))
    assert report.verdict == "lets a fault through"
    assert "It catches what the page shows, but not every variant of it." in report.text
    assert "It lets through 1 of 2 variants: wrong below 0.\nTry a negative number." in report.text
    assert "It lets through 3 of 3 faults: shown, " in exercise.examine(equals(2)).text

    def misses_what_is_shown(function):
        assert function(0) != 1
        assert function(-1) != 2

    report = exercise.examine(misses_what_is_shown)
    assert "It lets through 1 of 3 faults: shown." in report.text


def test_more_faults_must_be_caught_and_do_not_change_the_name_of_a_mistake():
    exercise = CatchFaults(
        {"right": lambda x: 2 * x},
        (
            Mistake("adds", "Try 0.", lambda x: x + 2),
            Mistake("wrong below 0", "Try a negative number.", lambda x: 2 * abs(x)),
        ),
        (Mistake("nothing below 0", "Half of the numbers are there.", equals(1)),),
        (),
        more=(Mistake("wrong at 7", "Try 7.", lambda x: 2 * x + (x == 7)),),
    )
    assert exercise.examine(equals(1, 7, -1)).verdict == "correct"
    assert "and catches: adds, wrong below 0, wrong at 7." in exercise.examine(equals(7, -1)).text
    for weak in equals(1), equals(1, 7):
        assert exercise.examine(weak).mistake == "nothing below 0"
    report = exercise.examine(equals(1, -1))
    assert (report.verdict, report.mistake) == ("lets a fault through", None)
    assert "It lets through 1 of 3 faults: wrong at 7.\nTry 7." in report.text


def test_padding_between_words_is_said_to_be_the_tests_fault():
    report = examine("pooling_test", classifier.scattered)
    assert report.verdict == "exception"
    said = "'the first positions': ValueError: padding is always behind the words"
    assert said in " ".join(report.text.split())


# ---------------------------------------------------------------------------- odd sessions


def test_smallest_failing_input_is_a_copy_that_may_be_changed():
    report = examine("softmax", np.exp)
    report.arguments["scores"][...] = 9
    assert examine("softmax", np.exp).text == report.text


def two_ellipses(scores):
    return scores[..., 0, ...]


class Misspelt(torch.nn.Module):
    def foward(self, x):
        return x


def subclass_of_not_implemented(scores):
    class StdinNotImplementedError(NotImplementedError):
        pass

    raise StdinNotImplementedError("no input()")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (two_ellipses, "IndexError: an index can only have a single ellipsis"),
        (lambda x: torch.zeros(2, dtype=torch.int64).softmax(-1), "NotImplementedError: "),
        (Misspelt(), 'missing the required "forward" function'),
        (subclass_of_not_implemented, "StdinNotImplementedError: no input()"),
    ],
)
def test_finished_answer_with_an_error_is_not_called_unfinished(answer, words):
    verdict, text = verdict_and_words("softmax", answer)
    assert verdict == "exception"
    assert words in text


def test_reader_may_say_what_is_not_implemented():
    def later(scores):
        raise NotImplementedError("later")

    assert examine("softmax", later).verdict == "not started"


def test_attribute_of_dots_is_not_started():
    def half(scores):
        total = ...
        return total.sum()

    assert examine("softmax", half).verdict == "not started"


@pytest.mark.parametrize("text", ["file \ud83d", "\x1b[2K\rsoftmax: correct."])
def test_characters_that_no_terminal_should_get_are_escaped(text):
    def raises(scores):
        raise ValueError(text)

    said = examine("softmax", raises).text
    assert all(x.isprintable() or x == "\n" for x in said)
    assert "ValueError: " in said


def check_inside(scores):
    check("softmax", check_inside)
    return right_softmax(scores)


def test_check_inside_the_answer_is_refused():
    verdict, text = verdict_and_words("softmax", check_inside)
    assert verdict == "exception"
    assert "ValueError: check must stand below the answer; got a call inside." in text
    assert 'check("softmax", check_inside)' in text


def test_known_mistakes_run_before_the_answer():
    order = []
    mistake = Mistake("m", "M.", lambda x: (order.append("mistake"), -x)[1])
    exercise = WriteFunction(lambda x: x, (Case("one", np.ones(1)),), (mistake,), ())
    exercise.examine(lambda x: (order.append("answer"), x.copy())[1])
    assert order == ["mistake", "answer"]


def test_errors_of_known_mistakes_hold_no_frames():
    def fails(x):
        raise ValueError

    exercise = WriteFunction(
        lambda x: x, (Case("one", np.ones(1)),), (Mistake("m", "M.", fails),), ()
    )
    assert exercise.examine(fails).mistake == "m"
    ((_, (outcome,)),) = exercise._known
    assert outcome.error.__traceback__ is None


def test_test_that_compares_with_what_it_met_first_is_refused():
    first = {}

    def remembers(softmax):
        got = np.asarray(softmax(ROW))
        np.testing.assert_allclose(got, first.setdefault("got", got))

    assert examine("softmax_test", remembers).verdict == "rejects a right one"


def test_function_under_test_has_its_name_its_signature_and_copies():
    def uses_them(softmax):
        assert softmax.__name__
        assert len(inspect.signature(softmax).parameters) == 1
        lookup.good_test(copy.copy(softmax))

    assert examine("softmax_test", uses_them).verdict == "correct"


def test_nearly_right_version_is_watched_too():
    exercise = CatchFaults(
        {"right": lambda x: 2 * x},
        (Mistake("one", "1.", lambda x: x),),
        (),
        (),
        nearly=(Mistake("near", "Nearly.", lambda x: 3 * x),),
    )

    def names(function):
        assert type(function).__name__ == "Watched"
        assert function(1) == 3

    assert "Nearly." in exercise.examine(names).text


def test_device_threads_and_log_of_the_session_are_put_back():
    before = torch.get_default_device(), torch.get_num_threads(), list(logging.root.handlers)

    def meddles(scores):
        torch.set_default_device("meta")
        torch.set_num_threads(before[1] + 1)
        logging.root.addHandler(logging.StreamHandler())
        return right_softmax(scores)

    assert examine("softmax", meddles).verdict == "correct"
    assert (
        torch.get_default_device(),
        torch.get_num_threads(),
        list(logging.root.handlers),
    ) == before


def test_figures_of_an_answer_are_closed_and_others_stay():
    def draws(scores):
        plt.figure()
        return right_softmax(scores)

    mine = plt.figure().number
    assert examine("softmax", draws).verdict == "correct"
    assert plt.get_fignums() == [mine]
    plt.close(mine)


def test_wrong_result_in_a_buffer_is_shown_as_it_was():
    buffer = np.zeros(100)

    def reuses(scores):
        result = buffer[: scores.size].reshape(scores.shape)
        result[...] = right_softmax(scores) * 2
        return result

    assert "expected [1], got [2]" in examine("softmax", reuses).text


def test_version_without_a_name_has_one_for_messages():
    exercise = CatchFaults(
        {"right": partial(pow, 2)}, (Mistake("one", "1.", partial(pow, 1)),), (), ()
    )

    def names(function):
        assert function(3) == 8, f"{function.__name__} is wrong"

    assert exercise.examine(names).verdict == "correct"


def test_tuple_argument_is_shown_whole_beside_a_large_array():
    case = Case("large", np.zeros((7, 7)), (2, 3))
    exercise = WriteFunction(lambda x, sizes: x + 1, (case,), (), ())
    assert "sizes = (2, 3)" in exercise.examine(lambda x, sizes: x).text


def test_huge_result_is_tried_once_and_not_kept():
    calls = []

    def huge(scores):
        calls.append(1)
        return np.broadcast_to(1.0, (10**7, 10**7))

    verdict, text = verdict_and_words("softmax", huge)
    assert verdict == "exception"
    assert "MemoryError: the result is far too large, of shape (10000000, 10000000)" in text
    assert len(calls) == 1


def test_memory_that_runs_out_later_leaves_the_small_inputs_right():
    def greedy(scores):
        if scores.size > 4:
            raise MemoryError
        return right_softmax(scores)

    assert "24 of 24" not in examine("softmax", greedy).text


def test_tuple_of_very_many_results_is_tried_once():
    report = examined("softmax", lambda x: tuple(range(10**5)))
    assert "the result is far too large, a tuple of 100000" in report.text


class Unseen:
    """Raises when it is shown."""

    def __repr__(self):
        raise RuntimeError("no")


class UnseenError(Exception):
    """Has a message that nobody can read."""

    def __str__(self):
        raise RuntimeError("no")


def raises_unseen(scores):
    raise UnseenError


def nested(depth):
    value = np.ones(2)
    for _ in range(depth):
        value = (value,)
    return value


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("softmax", lambda x: torch.zeros(x.shape, device="meta")),
        ("softmax", lambda x: torch.from_numpy(x).to_sparse()),
        ("softmax", lambda x: Unseen()),
        ("softmax", raises_unseen),
        ("softmax", lambda x: 10**5000),
        ("softmax", lambda x: nested(3000)),
        ("softmax", lambda x: type("ndarray", (), {})()),
        pytest.param("tie", 10**5000, id="more digits than Python prints"),
        ("tie", Decimal("sNaN")),
        ("tie", torch.zeros((), device="meta")),
    ],
)
def test_what_cannot_be_looked_at_is_a_wrong_type(name, answer):
    assert examined(name, answer).verdict == "type"


def test_wrapper_around_itself_is_no_crash():
    def wraps_itself(scores):
        return right_softmax(scores)

    wraps_itself.__wrapped__ = wraps_itself
    assert examine("softmax", wraps_itself).verdict == "type"


def test_numpy_that_raises_does_not_disturb_a_prediction():
    with np.errstate(all="raise"):
        assert examine("tie", 15).verdict == "correct"


@pytest.mark.parametrize("value", [tuple(range(400)), type("N" * 5000, (), {})()])
def test_result_of_many_parts_or_a_long_name_is_described_in_short(value):
    assert examined("softmax", lambda x: value).verdict == "type"


def test_leaving_the_debugger_ends_the_check():
    def leaves(scores):
        raise bdb.BdbQuit

    with pytest.raises(KeyboardInterrupt):
        examine("softmax", leaves)


def test_weak_test_that_collects_its_errors_is_not_said_to_swallow_them():
    def collects(softmax):
        problems = []
        try:
            lookup.only_small(softmax)
        except AssertionError as error:
            problems.append(error)
        assert not problems

    assert examine("softmax_test", collects).mistake == "only small scores"


@pytest.mark.parametrize(("name", "value"), [("head_parameters", 156), ("visible_pairs", 24)])
def test_count_is_exact(name, value):
    assert examine(name, float(value)).verdict == "correct"
    assert examine(name, value + 0.1).verdict == "wrong"


def test_one_coarse_number_is_a_wrong_dtype():
    def answer(query, keys, values, temperature=1.0):
        result = right_softmax(query @ keys.T / temperature) @ values
        return np.float16(result * 1.003) if result.ndim == 0 else result

    assert examine("soft_lookup", answer).verdict == "dtype"


def test_warning_is_not_taken_for_print():
    report = examine("softmax", lambda x: torch.from_numpy(right_softmax(x)).to(torch.complex128))
    assert "prints is not shown" not in report.text


def test_hint_takes_a_whole_float(capsys):
    hint("softmax", 1.0)
    assert capsys.readouterr().out.startswith("softmax, hint 1 of 3: ")


@pytest.mark.parametrize("name", [np.zeros(3), right_softmax])
def test_answer_in_place_of_the_name_is_refused_in_short(name):
    with pytest.raises(TypeError, match="name of the exercise must come first; got a"):
        check(name, "softmax")


# ---------------------------------------------------------------------------- check and hint


def test_check_prints_the_text_and_returns_nothing(capsys):
    assert check("softmax", right_softmax) is None
    assert capsys.readouterr().out == (
        "softmax: correct. 24 inputs tried, among them one key, two keys, ties, integer scores, a\n"
        "  column, as many rows as keys, random scores, two rows, float32, four axes, three axes,\n"
        "  large scores (overflow), very negative scores, large last score, very negative\n"
        "  float32, only the sum overflows, float32 (overflow), large first score, rows far\n"
        "  apart.\n"
    )


def test_wrong_answer_hears_how_to_get_a_hint(capsys):
    check("softmax", np.exp)
    assert capsys.readouterr().out.endswith('\nhint("softmax") gives the first of 3 hints.\n')


def test_hints_come_in_steps(capsys):
    hint("softmax")
    hint("softmax", 3)
    first, third = capsys.readouterr().out.split("softmax, hint ")[1:]
    assert first.startswith("1 of 3: Take the exponential")
    assert third.startswith("3 of 3: Subtract the maximum")


@pytest.mark.parametrize("step", [0, 4, -1])
def test_hint_beyond_the_last_says_so(step, capsys):
    hint("softmax", step)
    assert capsys.readouterr().out == (f"softmax has 3 hints, from 1 to 3: there is no {step}.\n")


@pytest.mark.parametrize(
    "call", [lambda name: check(name, None), hint, partial(examine, candidate=0)]
)
def test_unknown_name_is_refused_with_near_ones(call):
    with pytest.raises(ValueError, match=r"no exercise is called 'sofmax'\. Did you mean softmax"):
        call("sofmax")
    with pytest.raises(ValueError, match="There are: tie, softmax, soft_lookup, nearest_fault"):
        call("zzz")


def test_names_are_unique_over_all_chapters():
    chapters = [import_module(f"attention_lib.checks.{chapter}").EXERCISES for chapter in CHAPTERS]
    assert sum(map(len, chapters)) == len(EXERCISES)
    assert all(name in checks.engine.__dict__ for name in ("WriteFunction", "CatchFaults"))


SCRIPT = """
import sys
import numpy as np
from attention_lib.checks import check, hint
for name in ("tie", "softmax", "soft_lookup", "nearest_fault", "softmax_test"):
    check(name, ...)
    hint(name)
check("tie", 20)
check("softmax", np.exp)
check("softmax", lambda x: x + 1)
check("soft_lookup", lambda q, k, v, t=1: v)
check("softmax_test", lambda softmax: softmax([1, 2]))
assert "torch" not in sys.modules, "torch was loaded"
"""


def test_exercises_of_the_first_chapter_do_not_load_torch_and_say_the_same_on_every_run():
    texts = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(texts) == 1
    assert "tie: a known mistake: the last of the tied keys wins." in texts.pop()


def test_messages_are_the_same_when_asked_again():
    for name, (_, _, new) in ANSWERS.items():
        assert examine(name, new[0]) == examine(name, new[0])
