"""Chapter 1: lookups from the exact to the soft one."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attention_lib.lookup import hard_lookup, nearest_lookup, soft_lookup, softmax


def table(queries=5, keys=7, d=3, v=2):
    rng = np.random.default_rng(0)
    shapes = (queries, d), (keys, d), (keys, v)
    return [rng.normal(size=shape) for shape in shapes]


def soft_lookup_by_loops(query, keys, values, temperature):
    output = np.zeros((len(query), values.shape[1]))
    for i, q in enumerate(query):
        exponentials = [np.exp(sum(q * k) / temperature) for k in keys]
        for e, value in zip(exponentials, values, strict=True):
            output[i] += e / sum(exponentials) * value
    return output


scores = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=1, max_dims=3, max_side=5),
    elements=st.floats(-1e3, 1e3, width=32),
)


@given(scores, st.data())
def test_softmax_gives_positive_weights_that_sum_to_one_along_the_axis(x, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    weights = softmax(x, axis=axis)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=axis), 1)


@given(scores)
def test_softmax_keeps_the_order_and_ignores_a_common_shift(x):
    weights = softmax(x)
    assert (np.diff(np.take_along_axis(weights, x.argsort(axis=-1), -1), axis=-1) >= 0).all()
    np.testing.assert_allclose(softmax(x + 500), weights, atol=1e-10)


def test_softmax_agrees_with_the_formula_and_with_scores_of_known_ratio():
    x = np.log([[1.0, 2.0, 5.0], [4.0, 3.0, 1.0]])
    np.testing.assert_allclose(softmax(x), [[1 / 8, 2 / 8, 5 / 8], [4 / 8, 3 / 8, 1 / 8]])
    np.testing.assert_allclose(softmax(x, axis=0)[:, 0], [1 / 5, 4 / 5])


def test_softmax_of_large_scores_does_not_overflow_in_float32():
    weights = softmax(np.array([200.0, 100.0, 0.0], dtype=np.float32))
    assert weights.dtype == np.float32
    # exp(-100) lies among the last, coarse numbers of float32
    np.testing.assert_allclose(weights, [1, np.exp(-100), 0], rtol=0.05)


@pytest.mark.refusal
def test_soft_lookup_refuses_a_temperature_that_no_float_can_hold():
    said = "temperature must fit into a float64, or be np.inf for equal weights"
    with pytest.raises(ValueError, match=f"^{said}$"):
        soft_lookup(*table(), 10**400)


@pytest.mark.refusal  # wider than the signature, which ends at float64
def test_softmax_keeps_the_digits_of_a_longer_float():
    scores = np.array([0, 1], dtype=np.longdouble)
    expected = 1 / (1 + np.exp(scores[::-1] - scores))
    error = np.abs(softmax(scores) - expected).max()
    assert softmax(scores).dtype == np.longdouble
    assert error <= 2 * np.finfo(np.longdouble).eps


def test_softmax_of_float32_takes_half_the_memory_of_float64():
    def most_bytes(dtype):
        scores = np.zeros(100_000, dtype)
        tracemalloc.start()
        softmax(scores)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert most_bytes(np.float32) / most_bytes(np.float64) == pytest.approx(0.5, rel=0.05)


def test_softmax_of_many_scores_does_not_overflow_in_float16():
    weights = softmax(np.zeros(70_000, dtype=np.float16))  # the largest float16 is 65504
    assert weights.dtype == np.float16
    np.testing.assert_array_equal(weights, np.float16(1 / 70_000))


def test_softmax_of_minus_infinity_only_gives_zeros_and_of_one_gives_zero_weight():
    x = np.array([[0.0, -np.inf], [-np.inf, -np.inf]])
    np.testing.assert_array_equal(softmax(x), [[1, 0], [0, 0]])


def test_softmax_of_no_scores_is_empty():
    assert softmax(np.zeros((3, 0))).shape == (3, 0)


def test_softmax_takes_integers_and_leaves_its_argument_alone():
    x = np.array([3, 1, 2])
    before = x.copy()
    assert softmax(x).dtype == np.float64
    np.testing.assert_array_equal(x, before)


def test_hard_lookup_gives_what_a_dict_gives():
    names = {(1, 0): 20, (0, 1): 80, (1, 1): 35}
    keys, values = np.array(list(names)), np.array(list(names.values()))
    for key, value in names.items():
        assert hard_lookup(np.array(key), keys, values) == value
    np.testing.assert_array_equal(hard_lookup(keys[::-1], keys, values), values[::-1])


def test_hard_lookup_of_no_query_in_no_keys_is_empty():
    assert hard_lookup(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros((0, 3))).shape == (0, 3)


def test_hard_lookup_takes_the_last_of_equal_keys_as_a_dict_does():
    keys, values = np.array([[1], [2], [1]]), np.array([10, 20, 30])
    assert hard_lookup(np.array([1]), keys, values) == dict(zip([1, 2, 1], values, strict=True))[1]


def test_nearest_lookup_is_the_smallest_distance_for_keys_of_one_length():
    query, keys, values = table()
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    distance = np.linalg.norm(query[:, None] - keys, axis=-1)
    np.testing.assert_array_equal(nearest_lookup(query, keys, values), values[distance.argmin(1)])


def test_nearest_lookup_prefers_a_long_key_to_an_equal_one():
    keys = np.array([[1.0, 0.0], [3.0, 3.0]])
    assert nearest_lookup(np.array([1.0, 0.0]), keys, np.array([10, 20])) == 20


def test_nearest_lookup_takes_the_first_of_equal_scores():
    assert nearest_lookup(np.ones(2), np.eye(2), np.array([10, 20])) == 10


@pytest.mark.parametrize("temperature", [0.3, 1.0, 7.0])
def test_soft_lookup_agrees_with_loops(temperature):
    query, keys, values = table()
    expected = soft_lookup_by_loops(query, keys, values, temperature)
    np.testing.assert_allclose(soft_lookup(query, keys, values, temperature), expected)
    one = soft_lookup(query[2], keys, values[:, 1], temperature)
    np.testing.assert_allclose(one, expected[2, 1])


def test_temperature_is_1_by_default():
    np.testing.assert_array_equal(soft_lookup(*table()), soft_lookup(*table(), temperature=1.0))


def test_soft_lookup_comes_to_the_nearest_key_as_the_temperature_falls():
    query, keys, values = table()
    expected = nearest_lookup(query, keys, values)
    np.testing.assert_allclose(soft_lookup(query, keys, values, 1e-3), expected, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("temperature", [1e-4, 1e-38, 5e-324])
def test_temperature_may_be_as_small_as_a_number_can_be(dtype, temperature):
    keys = np.array([[1, 0], [3, 0], [3, 0], [2, 0]], dtype)
    query, values = np.array([[1, 0], [-1, 0], [0, 1]], dtype), np.array([1, 2, 4, 8], dtype)
    actual = soft_lookup(query, keys, values, temperature)
    np.testing.assert_array_equal(actual, [3, 1, 3.75])


def test_key_at_minus_infinity_gets_no_weight_and_such_keys_only_give_zeros():
    query, keys = np.array([1.0]), np.array([[-np.inf], [0.0]])
    assert soft_lookup(query, keys, np.array([7.0, 5.0]), 0.5) == 5
    assert soft_lookup(query, keys[:1], np.array([7.0]), 0.5) == 0


def test_weight_of_the_best_key_is_at_least_what_its_lead_promises():
    query, keys, _ = table()
    for temperature in (0.05, 0.5, 5.0):
        for row in query @ keys.T:
            first, second = np.sort(row)[::-1][:2]
            bound = 1 / (1 + (len(keys) - 1) * np.exp(-(first - second) / temperature))
            assert softmax(row / temperature).max() >= bound - 1e-12


def test_soft_lookup_shares_equally_among_ties_and_duplicate_keys_as_the_temperature_falls():
    keys = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    assert soft_lookup(np.ones(2), keys, np.array([10, 20, 60]), 1e-3) == pytest.approx(15)
    twice = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert soft_lookup(twice[0], twice, np.array([10, 20, 60]), 1e-3) == pytest.approx(15)


def test_soft_lookup_comes_to_the_plain_mean_as_the_temperature_grows():
    query, keys, values = table()
    mean = np.broadcast_to(values.mean(axis=0), (5, 2))
    for highest in (sys.float_info.max, np.inf):
        np.testing.assert_allclose(soft_lookup(query, keys, values, highest), mean)
    np.testing.assert_allclose(soft_lookup(query, keys, values, 1e9), mean, atol=1e-7)


def test_slope_of_the_soft_lookup_is_weight_times_lead_of_the_value():
    query, keys, values = table(queries=1)
    step, values = 1e-6, values[:, 0]
    raw = (query @ keys.T)[0]
    weights = softmax(raw)
    for i in range(len(raw)):
        moved = raw.copy()
        moved[i] += step
        slope = (softmax(moved) @ values - weights @ values) / step
        assert slope == pytest.approx(weights[i] * (values[i] - weights @ values), abs=1e-5)


def test_arguments_of_every_lookup_stay_as_they_were():
    for lookup in (nearest_lookup, soft_lookup):
        arguments = table()
        lookup(*arguments)
        for now, before in zip(arguments, table(), strict=True):
            np.testing.assert_array_equal(now, before)


def test_chapter_one_does_not_load_torch():
    code = "import sys, attention_lib; attention_lib.soft_lookup; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.refusal
@pytest.mark.parametrize("lookup", [hard_lookup, nearest_lookup, soft_lookup])
@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3, 5), (7, 5), (7,)), r"query must have shape \(d,\) or \(q, d\).*\(2, 3, 5\)"),
        (((3,), (3,), (3,)), r"keys \(k, d\); got query \(3,\) and keys \(3,\)"),
        (((2, 3), (7, 5), (7,)), r"same width d; got query \(2, 3\) and keys \(7, 5\)"),
        (((2, 5), (7, 5), (3, 2)), r"each of the 7 keys.*got \(3, 2\)"),
        (((2, 5), (7, 5), (7, 2, 2)), r"shape \(k,\) or \(k, v\); got \(7, 2, 2\)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(lookup, shapes, message):
    with pytest.raises(ValueError, match=message):
        lookup(*(np.zeros(shape) for shape in shapes))


@pytest.mark.refusal
@pytest.mark.parametrize("query", [[0.0, 2.0], [[1.0, 0.0], [0.0, 2.0]]])
def test_key_that_is_not_there_is_a_key_error_that_shows_the_query(query):
    with pytest.raises(KeyError) as caught:
        hard_lookup(np.array(query), np.eye(2), np.array([1, 2]))
    assert caught.value.args == ("no key equals the query [0.0, 2.0]",)


@pytest.mark.refusal
@pytest.mark.parametrize("axis", [2, -3])
def test_axis_that_the_scores_do_not_have_is_refused(axis):
    message = rf"^axis must be one of the 2 axes of x \(2, 3\); got {axis}$"
    with pytest.raises(ValueError, match=message):
        softmax(np.zeros((2, 3)), axis=axis)


@pytest.mark.refusal
@pytest.mark.parametrize("lookup", [nearest_lookup, soft_lookup])
def test_empty_table_has_no_nearest_key(lookup):
    message = "^an empty table has no nearest key: keys must have at least one row$"
    with pytest.raises(ValueError, match=message):
        lookup(np.zeros(2), np.zeros((0, 2)), np.zeros(0))


@pytest.mark.refusal
@pytest.mark.parametrize("temperature", [0, -1.0, float("nan")])
def test_temperature_that_is_not_positive_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature") as caught:
        soft_lookup(np.ones(2), np.eye(2), np.array([1, 2]), temperature)
    assert str(caught.value) == (
        f"temperature must be positive; got {temperature}. "
        "The limit towards 0 is nearest_lookup (where one key is nearest)."
    )


@pytest.mark.refusal
def test_temperature_that_is_no_number_is_refused():
    with pytest.raises(TypeError, match=r"^temperature must be a number; got str$"):
        soft_lookup(np.ones(2), np.eye(2), np.array([1, 2]), "1")


@pytest.mark.refusal
@pytest.mark.parametrize("bad", [np.array([True]), np.array(["a"]), np.array([1j])])
def test_what_is_not_a_real_number_is_refused(bad):
    with pytest.raises(TypeError, match=f"^x must hold real numbers; got dtype {bad.dtype}$"):
        softmax(bad)
    for place, name in enumerate(["query", "keys", "values"]):
        arguments = [np.ones(1), np.ones((1, 1)), np.ones(1)]
        arguments[place] = bad
        with pytest.raises(TypeError, match=f"^{name} must hold real numbers; got dtype"):
            soft_lookup(*arguments)
