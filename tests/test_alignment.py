"""Chapter 10: dates, characters, the transducer against loops, greedy decoding."""

import copy
import datetime
import io
import math
import sys

import pytest
import torch
from babel.dates import format_date

from attention_lib import alignment
from attention_lib.alignment import (
    END,
    FORMATS,
    LANGUAGES,
    PAD,
    START,
    Characters,
    DatePair,
    Transducer,
    date_pairs,
    greedy_decode,
    shift_right,
    weight_on_field,
    write_date,
)

# every axis another number, so that a swapped axis cannot pass
B, T, S, SOURCE_SIZE, TARGET_SIZE, E = 3, 5, 7, 17, 13, 6
LENGTHS = [4, 7, 2]


def random_model(seed=0):
    """A model in float64 whose biases are random, too: at 0 they would hide faults."""
    model = Transducer(SOURCE_SIZE, TARGET_SIZE, E).double()
    rng = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
    return model


def random_ids(seed=0):
    """Source ids with padding behind them, and target ids."""
    rng = torch.Generator().manual_seed(seed)
    source = torch.randint(3, SOURCE_SIZE, (B, S), generator=rng)
    for row, length in zip(source, LENGTHS, strict=True):
        row[length:] = PAD
    return source, torch.randint(1, TARGET_SIZE, (B, T), generator=rng)


MODEL = random_model()
SOURCE, INPUTS = random_ids()


# ---------------------------------------------------------------------------- the model by loops


def gru_by_loops(layer, vectors, suffix=""):
    """The states of one direction, from the equations in the manual of ``torch.nn.GRU``."""
    w_i, w_h, b_i, b_h = (
        getattr(layer, f"{kind}_l0{suffix}")
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    n = layer.hidden_size
    state, states = vectors.new_zeros(n), []
    for x in vectors:
        a, b = w_i @ x + b_i, w_h @ state + b_h
        r, z = torch.sigmoid(a[:n] + b[:n]), torch.sigmoid(a[n : 2 * n] + b[n : 2 * n])
        new = torch.tanh(a[2 * n :] + r * b[2 * n :])
        state = (1 - z) * new + z * state
        states.append(state)
    return torch.stack(states)


def transducer_by_loops(model, source, inputs):
    """Scores and weights of one sample without padding."""
    read = model.source_embedding.weight[source]
    onward = gru_by_loops(model.encoder, read)
    back = gru_by_loops(model.encoder, read.flip(0), "_reverse").flip(0)
    memory = torch.cat([onward, back], dim=1)
    states = gru_by_loops(model.decoder, model.target_embedding.weight[inputs])
    attention = model.attention
    keys = [attention.k_proj.weight @ m + attention.k_proj.bias for m in memory]
    values = [attention.v_proj.weight @ m + attention.v_proj.bias for m in memory]
    scores, weights = [], []
    for state in states:
        query = attention.q_proj.weight @ state + attention.q_proj.bias
        e = [math.exp(query @ key / math.sqrt(len(query))) for key in keys]
        weights.append([x / sum(e) for x in e])
        mixed = sum(w * value for w, value in zip(weights[-1], values, strict=True))
        found = attention.out_proj.weight @ mixed + attention.out_proj.bias
        scores.append(model.output.weight @ torch.cat([state, found]) + model.output.bias)
    return torch.stack(scores), torch.tensor(weights, dtype=states.dtype)


def test_model_equals_the_loops_for_each_sample_without_its_padding():
    scores, weights = MODEL(SOURCE, INPUTS, return_weights=True)
    assert scores.shape == (B, T, TARGET_SIZE)
    assert weights.shape == (B, T, S)
    for i, length in enumerate(LENGTHS):
        with torch.no_grad():
            expected = transducer_by_loops(MODEL, SOURCE[i, :length], INPUTS[i])
        torch.testing.assert_close(scores[i], expected[0], rtol=0, atol=1e-10)
        torch.testing.assert_close(weights[i, :, :length], expected[1], rtol=0, atol=1e-10)
        assert not weights[i, :, length:].any()


def test_asking_for_weights_changes_nothing_else():
    scores, _ = MODEL(SOURCE, INPUTS, return_weights=True)
    torch.testing.assert_close(MODEL(SOURCE, INPUTS), scores, rtol=0, atol=0)


def test_more_padding_changes_no_score_and_no_gradient():
    longer = torch.nn.functional.pad(SOURCE, (0, 4))
    cotangent = torch.randn(B, T, TARGET_SIZE, generator=torch.Generator().manual_seed(2))
    results = []
    for source in (SOURCE, longer):
        scores = MODEL(source, INPUTS)
        grads = torch.autograd.grad(scores, list(MODEL.parameters()), cotangent.double())
        results.append((scores, *grads))
    torch.testing.assert_close(*results, rtol=0, atol=1e-10)
    assert MODEL.encode(longer).shape == (B, S + 4, E)
    assert not MODEL.encode(longer)[0, 4:].any()


def test_sample_does_not_depend_on_its_batch():
    together = MODEL(SOURCE, INPUTS)
    for i in range(B):
        alone = MODEL(SOURCE[i : i + 1], INPUTS[i : i + 1])
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=1e-10)


def test_scores_depend_on_every_earlier_input_and_on_no_later_one():
    scores = MODEL(SOURCE, INPUTS)
    for t in range(T):
        other = INPUTS.clone()
        other[:, t] = 1 + other[:, t] % (TARGET_SIZE - 1)
        moved = (MODEL(SOURCE, other) - scores).abs().amax(dim=(0, 2)) > 0
        assert moved.tolist() == [False] * t + [True] * (T - t)


def test_source_reaches_the_scores_through_the_attention_alone():
    model = copy.deepcopy(MODEL)
    torch.nn.init.zeros_(model.attention.v_proj.weight)
    other = SOURCE.where(SOURCE == PAD, 3 + SOURCE % (SOURCE_SIZE - 3))
    assert not torch.equal(MODEL(other, INPUTS), MODEL(SOURCE, INPUTS))
    torch.testing.assert_close(model(other, INPUTS), model(SOURCE, INPUTS))


def test_every_parameter_gets_a_gradient_but_the_bias_of_the_keys():
    MODEL.zero_grad()
    MODEL(SOURCE, INPUTS).square().sum().backward()
    small = [name for name, p in MODEL.named_parameters() if p.grad.abs().max() < 1e-10]
    assert small == ["attention.k_proj.bias"]


def test_saved_model_gives_the_same_scores():
    file = io.BytesIO()
    torch.save(MODEL.state_dict(), file)
    file.seek(0)
    loaded = Transducer(SOURCE_SIZE, TARGET_SIZE, E).double()
    loaded.load_state_dict(torch.load(file))
    torch.testing.assert_close(loaded(SOURCE, INPUTS), MODEL(SOURCE, INPUTS), rtol=0, atol=0)


# ---------------------------------------------------------------------------- writing


def test_shift_right_puts_the_start_in_front_and_leaves_the_last_out():
    shifted = shift_right(INPUTS)
    assert shifted.shape == (B, T)
    for row, target in zip(shifted.tolist(), INPUTS.tolist(), strict=True):
        assert row == [START, *target[:-1]]


def greedy_by_loops(model, source, max_length):
    written = []
    for _ in range(max_length):
        inputs = torch.tensor([[START, *written]])
        written.append(int(model(source[None], inputs)[0, -1].argmax()))
        if written[-1] == END:
            break
    return written


@pytest.mark.parametrize("end_bias", [-99.0, 2.0, 5.0, 99.0])
def test_greedy_decoding_takes_the_best_id_of_each_step_until_the_end(end_bias):
    model = random_model(seed=5)
    with torch.no_grad():
        model.output.bias[END] += end_bias
    ids = greedy_decode(model, SOURCE, 6)
    expected = [greedy_by_loops(model, row[row != PAD], 6) for row in SOURCE]
    longest = max(map(len, expected))
    assert ids.tolist() == [row + [PAD] * (longest - len(row)) for row in expected]


def test_some_greedy_rows_end_before_others():
    model = random_model(seed=5)
    with torch.no_grad():
        model.output.bias[END] += 5.0
    lengths = [len(greedy_by_loops(model, row[row != PAD], 6)) for row in SOURCE]
    assert lengths == [3, 2, 6]


def test_greedy_decoding_keeps_no_gradient_and_no_argument_changes():
    source = SOURCE.clone()
    assert not greedy_decode(MODEL, source, 2).requires_grad
    assert torch.equal(source, SOURCE)


def test_model_is_96_wide_by_default():
    assert Transducer(SOURCE_SIZE, TARGET_SIZE).attention.embed_dim == 96


# ---------------------------------------------------------------------------- characters


def test_characters_of_texts_come_back_and_padding_stands_behind():
    letters = Characters(["4 März", "март"])
    ids = letters.encode(["рат", "4 Mär"])
    assert ids.shape == (2, 5)
    assert (ids == PAD).tolist() == [[False] * 3 + [True] * 2, [False] * 5]
    assert letters.decode(ids) == ["рат", "4 Mär"]
    assert len(letters) == 3 + len(set("4 März" + "март"))
    assert int(ids.max()) < len(letters)


def test_end_stands_behind_each_text_and_cuts_what_follows():
    letters = Characters(["ab"])
    ids = letters.encode(["a", "ba"], end=True)
    assert ids.tolist() == [[3, END, PAD], [4, 3, END]]
    assert letters.decode(torch.tensor([[START, 3, END, 4], [3, PAD, 4, 4]])) == ["a", "abb"]


def test_texts_without_characters_are_ids_too():
    letters = Characters(["ab"])
    assert letters.encode([""]).dtype == torch.int64
    assert letters.encode(["", ""], end=True).tolist() == [[END], [END]]


def test_ids_do_not_depend_on_the_order_of_the_texts():
    assert Characters(["ab", "c"]).known == Characters(["c", "ba"]).known == ["a", "b", "c"]


# ---------------------------------------------------------------------------- dates


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("locale", LANGUAGES.values())
def test_date_is_written_as_babel_writes_it(locale, format):
    for date in (datetime.date(2026, 3, 4), datetime.date(1951, 12, 31)):
        text, fields = write_date(date, format, locale)
        assert text == format_date(date, format, locale)
        assert len(fields) == len(text)


@pytest.mark.parametrize("locale", LANGUAGES.values())
def test_fields_say_where_each_part_stands(locale):
    date = datetime.date(2026, 3, 4)
    text, fields = write_date(date, "full", locale)
    parts = {
        letter: "".join(c for c, f in zip(text, fields, strict=True) if f == letter)
        for letter in "EdMy"
    }
    assert parts == {
        letter: format_date(date, pattern, locale)
        for letter, pattern in {"E": "EEEE", "d": "d", "M": "MMMM", "y": "y"}.items()
    }


@pytest.mark.parametrize(
    ("format", "locale", "expected"),
    [
        ("d%y", "de", ("4%2026", "d yyyy")),
        ("d'%(d)s' y", "de", ("4%(d)s 2026", "d      yyyy")),
        ("cccc LLL", "de", ("Mittwoch Mär", "EEEEEEEE MMM")),
        ("G y", "en", ("AD 2026", "   yyyy")),
        ("full", "fi", ("keskiviikko 4. maaliskuuta 2026", "EEEEEEEEEEE d  MMMMMMMMMMM yyyy")),
    ],
)
def test_other_patterns_give_text_as_it_is_and_the_same_four_letters(format, locale, expected):
    assert write_date(datetime.date(2026, 3, 4), format, locale) == expected


def test_pairs_are_split_by_date_and_lie_in_one_century():
    train, test = date_pairs(2000, 500)
    assert (len(train), len(test)) == (2000, 500)
    days, days_of_test = ({pair.iso for pair in part} for part in (train, test))
    assert len(days_of_test) == 500
    assert not days & days_of_test
    years = {int(iso[:4]) for iso in days | days_of_test}
    assert (min(years), max(years)) == (1950, 2049)


def test_no_written_date_has_two_meanings():
    meanings = {}
    for pair in date_pairs(5_000)[0]:
        meanings.setdefault(pair.text, set()).add(pair.iso)
    assert max(map(len, meanings.values())) == 1


def test_all_fields_may_stand_in_one_date():
    text, fields = write_date(datetime.date(2026, 3, 4), "E c d M L y G", "en")
    assert text.endswith("4 3 3 2026 AD")
    assert fields.endswith("d M M yyyy   ")


def test_every_language_and_format_occurs_and_each_pair_fits_together():
    train, _ = date_pairs(1000, 0)
    assert {pair.language for pair in train} == set(LANGUAGES)
    assert {pair.format for pair in train} == set(FORMATS)
    for pair in train[:100]:
        assert isinstance(pair, DatePair)
        date = datetime.date.fromisoformat(pair.iso)
        written = write_date(date, pair.format, LANGUAGES[pair.language])
        assert (pair.text, pair.fields) == written


def quick_pair(day, rng):
    return alignment.DatePair(*[str(day)] * len(alignment.DatePair._fields))


def test_default_is_22_000_pairs_to_train_and_1_000_to_test_of_seed_0(monkeypatch):
    monkeypatch.setattr(alignment, "_draw_pair", quick_pair)  # writing takes seconds
    train, test = date_pairs()
    assert (len(train), len(test)) == (22_000, 1_000)
    assert (train, test) == date_pairs(22_000, 1_000, seed=0)


def test_pairs_depend_on_the_seed_alone():
    assert date_pairs(50, 5, seed=1) == date_pairs(50, 5, seed=1)
    assert date_pairs(50, 5, seed=1) != date_pairs(50, 5, seed=2)


# ---------------------------------------------------------------------------- weights


def test_weight_on_a_field_is_the_sum_over_its_characters():
    weights = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(0))
    fields = ["dMM", "yy dM"]
    for letter in "dMyE":
        result = weight_on_field(weights, fields, letter)
        assert result.shape == (2, 3)
        for i, t in ((0, 0), (0, 2), (1, 0), (1, 1)):
            row = zip(weights[i, t], fields[i].ljust(5), strict=True)
            expected = sum(float(w) for w, f in row if f == letter)
            assert result[i, t].item() == pytest.approx(expected)


# ---------------------------------------------------------------------------- refusals

NOT_IDS = "must be an int64 or int32 tensor; got"
NOT_SHAPE = "must have shape (batch, position) and hold at least one number; got"
PADDING = (
    "each source needs at least one character, and padding stands behind them all; "
    "got padding first or inside in rows"
)


def refuses(error, message, call, *args, **kwargs):
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    assert str(caught.value) == message


def with_padding_at(row, column):
    """The source, whose last row has one character only, with padding at one more place."""
    source = SOURCE.clone()
    source[2, 1], source[row, column] = PAD, PAD
    return source


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"source": SOURCE.float()}, TypeError, f"source {NOT_IDS} torch.float32"),
        ({"source": SOURCE.tolist()}, TypeError, f"source {NOT_IDS} list"),
        ({"source": SOURCE[0]}, ValueError, f"source {NOT_SHAPE} (7,)"),
        ({"source": SOURCE[:0]}, ValueError, f"source {NOT_SHAPE} (0, 7)"),
        ({"source": SOURCE + 9}, ValueError, "source must lie between 0 and 16; got 9 to 23"),
        ({"source": SOURCE - 1}, ValueError, "source must lie between 0 and 16; got -1 to 13"),
        ({"source": SOURCE.flip(1)}, ValueError, f"{PADDING} [0, 2]"),
        ({"source": torch.zeros(B, S).long()}, ValueError, f"{PADDING} [0, 1, 2]"),
        ({"source": with_padding_at(1, 3)}, ValueError, f"{PADDING} [1]"),
        ({"source": with_padding_at(1, 0)}, ValueError, f"{PADDING} [1]"),
        ({"inputs": INPUTS > 0}, TypeError, f"inputs {NOT_IDS} torch.bool"),
        ({"inputs": INPUTS * 0 + 13}, ValueError, "inputs must lie between 0 and 12; got 13 to 13"),
        ({"inputs": INPUTS[:, :0]}, ValueError, f"inputs {NOT_SHAPE} (3, 0)"),
        (
            {"inputs": INPUTS[:2]},
            ValueError,
            "source and inputs must have the same batch size; got 3 and 2",
        ),
    ],
)
def test_ids_that_do_not_fit_are_refused(change, error, message):
    refuses(error, message, MODEL, **({"source": SOURCE, "inputs": INPUTS} | change))


def test_source_of_one_character_is_enough():
    source = with_padding_at(2, 1)
    scores, weights = MODEL(source, INPUTS, return_weights=True)
    assert weights[2].tolist() == [[1.0] + [0.0] * 6] * T
    torch.testing.assert_close(MODEL(source[2:, :1], INPUTS[2:])[0], scores[2])


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ((0, 5), ValueError, "source_size must be at least 1; got 0"),
        ((5, 2.0), TypeError, "target_size must be an integer; got 2.0"),
        ((5, 5, 7), ValueError, "embed_dim must be even, half for each direction; got 7"),
        ((5, 5, 9), ValueError, "embed_dim must be even, half for each direction; got 9"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, error, message):
    refuses(error, message, Transducer, *sizes)


@pytest.mark.refusal
def test_texts_and_ids_of_other_characters_are_refused():
    letters = Characters(["ab"])
    message = "every character must be one of the 2 known ones; got ['c', '日']"
    refuses(ValueError, message, letters.encode, ["a", "日c"])
    refuses(TypeError, "texts must be a list of texts; got 'ab'", letters.encode, "ab")
    refuses(TypeError, "texts must be a list of texts; got 'ab'", Characters, "ab")
    refuses(ValueError, "texts must hold at least one text; got none", letters.encode, [])
    ids = torch.tensor([[3, 5]])
    refuses(ValueError, "ids must lie between 0 and 4; got 3 to 5", letters.decode, ids)
    refuses(TypeError, f"ids {NOT_IDS} list", letters.decode, ids.tolist())
    refuses(TypeError, f"target {NOT_IDS} list", shift_right, ids.tolist())


@pytest.mark.refusal
def test_writing_without_a_model_a_source_or_a_length_is_refused():
    refuses(ValueError, "max_length must be at least 1; got 0", greedy_decode, MODEL, SOURCE, 0)
    refuses(
        TypeError, "model must be a Transducer; got GRU", greedy_decode, MODEL.decoder, SOURCE, 1
    )
    refuses(TypeError, f"source {NOT_IDS} list", greedy_decode, MODEL, SOURCE.tolist(), 1)


@pytest.mark.refusal
def test_dates_that_nobody_can_write_are_refused():
    refuses(ValueError, "train must be at least 0; got -1", date_pairs, -1, 0)
    refuses(ValueError, "test must be at least 0; got -1", date_pairs, 1, -1)
    refuses(ValueError, "seed must be at least 0; got -1", date_pairs, 1, 1, -1)
    refuses(ValueError, "test must be at most 36524 days; got 36525", date_pairs, 1, 36_525)
    date = datetime.date(2026, 3, 4)
    refuses(TypeError, "date must be a datetime.date; got str", write_date, "4.3.", "full", "de")
    refuses(TypeError, "format must be a text; got int", write_date, date, 1, "de")
    refuses(TypeError, "locale must be a text; got NoneType", write_date, date, "full", None)
    for format in ("HH:mm", "QQQ y"):
        message = f"format must have no other fields than E, c, d, M, L, y, G; got {format!r}"
        refuses(ValueError, message, write_date, date, format, "de")
    message = "locale must be known to Babel; got 'xx'"
    refuses(ValueError, message, write_date, date, "full", "xx")


@pytest.mark.refusal
def test_weights_without_their_fields_are_refused():
    weights, wide = torch.ones(2, 3, 5), "must be 2 texts of at most 5 letters; got"
    refuses(ValueError, f"fields {wide} 1 of up to 1", weight_on_field, weights, ["d"], "d")
    refuses(ValueError, f"fields {wide} 0 of up to 0", weight_on_field, weights, [], "d")
    refuses(
        ValueError, f"fields {wide} 2 of up to 6", weight_on_field, weights, ["d", "d" * 6], "d"
    )
    refuses(
        TypeError, "fields must be a list of texts; got 'dM'", weight_on_field, weights, "dM", "d"
    )
    message = "weights must be a torch.Tensor; got list"
    refuses(TypeError, message, weight_on_field, weights.tolist(), ["d", "d"], "d")
    rule = "weights must have shape (batch, T, S), and letter be E, d, M or y; got"
    refuses(ValueError, f"{rule} (3, 5) and 'd'", weight_on_field, weights[0], ["d"] * 3, "d")
    for letter in ("X", "dM", ""):
        message = f"{rule} (2, 3, 5) and {letter!r}"
        refuses(ValueError, message, weight_on_field, weights, ["d", "d"], letter)


@pytest.mark.refusal
def test_missing_babel_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "babel", None)
    message = (
        "the dates of chapter 10 are written by Babel, which is not installed. "
        'Install it with: pip install "babel>=2.16"'
    )
    refuses(ImportError, message, date_pairs, 1, 1)


def test_no_sample_has_no_weight_on_a_field():
    assert weight_on_field(torch.ones(0, 3, 5), [], "d").shape == (0, 3)
