"""Chapter 9: sentences, vocabulary, the classifier and changed weights, against loops and PyTorch.

Letters and numbers in comments, such as M32, are those of the collection of public reports of
trouble with attention code that the tests answer.
"""

import copy
import io
import re
import sys
from collections import Counter

import pytest
import torch
from torch import nn

from attention_lib import classifier
from attention_lib.block import sinusoidal_positional_encoding
from attention_lib.classifier import (
    CLASS,
    PAD,
    POOLINGS,
    UNKNOWN,
    AttentionClassifier,
    ChangedAttention,
    Vocabulary,
    library_sentences,
    opinions,
    shuffled_weights,
    uniform_weights,
    with_changed_weights,
)
from attention_lib.masks import padding_mask
from attention_lib.multi_head import MultiHeadAttention
from attention_lib.parity import to_torch

# every axis another number, so that a swapped axis cannot pass
B, L, E, H, LAYERS, CLASSES, WORDS = 5, 7, 12, 3, 2, 11, 13
LENGTHS = [7, 1, 4, 6, 3]

each_pooling = pytest.mark.parametrize("pooling", POOLINGS)


def sentences():
    ids = torch.randint(1, WORDS, (B, L), generator=torch.Generator().manual_seed(0))
    return ids * (torch.arange(L) < torch.tensor(LENGTHS)[:, None])


def random_model(pooling="mean", **options):
    """A model all of whose parameters are random: biases at 0 would hide faults."""
    options = {"num_layers": LAYERS, **options}
    model = AttentionClassifier(WORDS, E, H, CLASSES, pooling=pooling, **options).double().eval()
    rng = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=rng) / 2)
    return model


def close(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


# The data


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that would stop the tests if anything of it were run."""
    root = tmp_path / "libfortests"
    (root / "tests").mkdir(parents=True)
    (root / "__init__.py").write_text("raise SystemExit\n")
    (root / "tests" / "data.py").write_text('"""The tests of a library are not what it says."""\n')
    (root / "broken.py").write_text('"""A template that no Python reads is left out here."""\n{{')
    (root / "one.py").write_text(
        '"""NumPy and np make the arrays of two words. Too short, this one.\n\n'
        "Lines of one paragraph are\n    one long sentence, with Commas!  "
        "The array[0] of code is no sentence of words at all.\n"
        ">>> Examples of code are left out of the text.\n"
        '"""\n'
        "class Thing:\n"
        "    def method(self):\n"
        '        """A method has a sentence of its own."""\n'
        '        "Another text is not a docstring at all."\n'
        "async def later():\n"
        '    """A method has a sentence of its own."""\n'
        f'def long():\n    """{"Many words " * 15}are not too many? {"Word " * 31}."""\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "libfortests"


EXPECTED = {
    "and make the arrays of two words",
    "lines of one paragraph are one long sentence with commas",
    "a method has a sentence of its own",
}


def test_sentences_are_those_of_docstrings_and_nothing_is_run(package):
    found = library_sentences(3, [package])
    assert set(found[package]) == EXPECTED
    assert package not in sys.modules


def test_sentences_are_fixed_distinct_clean_and_balanced():
    found = library_sentences(60)
    assert found == library_sentences(60)
    assert list(found) == list(classifier.LIBRARIES)
    texts = [text for own in found.values() for text in own]
    assert len(set(texts)) == len(texts) == 240
    for text in texts:
        assert 6 <= len(text.split()) <= 30
        assert re.fullmatch("[a-z ]+", text)
        assert not classifier._NAMES & set(text.split())


def test_sentence_of_two_libraries_is_the_first_ones(package, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__init__.py").write_text(
        '"""A method has a sentence of its own. But this one is found here alone.\n'
        'And so is this one, we hope. The last one makes it three."""'
    )
    alone = library_sentences(3, ["other"])["other"]
    assert alone[0] == "a method has a sentence of its own"
    both = library_sentences(3, [package, "other"])
    assert set(both[package]) == EXPECTED
    assert both["other"] == [*alone[1:], "the last one makes it three"]


def package_of(root, texts):
    """A package with one module for each text, its docstring."""
    root.mkdir()
    for name, text in {"__init__": "", **texts}.items():
        (root / f"{name}.py").write_text(f'"""{text}"""')


def test_sentences_have_6_to_30_words_and_end_with_their_paragraph(tmp_path, monkeypatch):
    kept = ["A sentence has six words here.", f"Many {'words ' * 28}here."]
    text = "\n\n".join(
        [
            "A title has no stop",
            *kept,
            "But this one has five.",
            f"Many {'words ' * 29}here.",
            ".. A directive of a manual is not a sentence.",
            "... A line of an example is not a sentence.",
            ":raises: A field of a manual is not a sentence.",
        ]
    )
    package_of(tmp_path / "edges", {"one": text})
    monkeypatch.syspath_prepend(str(tmp_path))
    found = library_sentences(2, ["edges"])["edges"]
    assert found == [sentence.lower().rstrip(".") for sentence in kept]
    refuses(ValueError, "edges must have 3 sentences; got 2", library_sentences, 3, ["edges"])


def test_files_are_read_in_one_fixed_order_that_is_not_that_of_their_names(tmp_path, monkeypatch):
    package_of(tmp_path / "mixed", {n: f"A sentence of the file named {n}." for n in "abcdef"})
    monkeypatch.syspath_prepend(str(tmp_path))
    found = library_sentences(6, ["mixed"])["mixed"]
    assert [sentence[-1] for sentence in found] == list("edbcfa")


@pytest.mark.parametrize(("name", "place"), [("distutils", None), ("tests", None), ("g", 1)])
def test_one_more_file_moves_no_other(name, place, tmp_path, monkeypatch):
    """NumPy's distutils comes with some versions of Python only."""
    texts = {n: f"A sentence of the file named {n}." for n in [*"abcdef", name]}
    package_of(tmp_path / "mixed", texts)
    monkeypatch.syspath_prepend(str(tmp_path))
    expected = [f"a sentence of the file named {n}" for n in "edbcfa"]
    if place is None:
        message = "mixed must have 7 sentences; got 6"
        refuses(ValueError, message, library_sentences, 7, ["mixed"])
    else:
        expected.insert(place, f"a sentence of the file named {name}")
    assert library_sentences(len(expected), ["mixed"])["mixed"] == expected


def test_generator_decides_about_opinions_and_the_global_one_stays():
    state = torch.get_rng_state()
    one, same, other = (opinions(9, torch.Generator().manual_seed(seed)) for seed in (4, 4, 5))
    assert torch.equal(torch.get_rng_state(), state)
    assert one == same != other


def test_two_opinions_of_a_pair_have_the_same_words_and_lengths_of_their_statements():
    texts, labels = opinions(50, torch.Generator().manual_seed(0))
    assert labels == [1, 0] * 50
    for praise, complaint in zip(texts[::2], texts[1::2], strict=True):
        assert Counter(praise.split()) == Counter(complaint.split())
        assert praise != complaint
        for one, other in zip(praise.split(" and "), complaint.split(" and "), strict=True):
            assert len(one.split()) == len(other.split())
            assert one.split()[-1] == other.split()[-1]
            assert ("not" in one.split()) != ("not" in other.split())


def test_label_of_an_opinion_follows_from_its_two_statements():
    good_at = Counter()
    for text, label in zip(*opinions(50, torch.Generator().manual_seed(0)), strict=True):
        statements = [part.split() for part in text.split(" and ")]
        says = [(words[-1] in classifier.GOOD) != ("not" in words) for words in statements]
        assert says == [bool(label)] * 2
        assert statements[0][1] != statements[1][1]
        assert all(words[0::2][:2] == ["the", "was"] for words in statements)
        good_at[statements[0][-1] in classifier.GOOD, label] += 1
    assert min(good_at.values()) > 10
    assert len(good_at) == 4


def test_no_place_of_an_opinion_gives_the_answer_away():
    texts, labels = opinions(400, torch.Generator().manual_seed(0))
    kind = (
        {w: "good" for w in classifier.GOOD} | {w: "bad" for w in classifier.BAD} | {"not": "not"}
    )
    told, lengths = Counter(), Counter()
    for text, label in zip(texts, labels, strict=True):
        told.update((k, kind.get(w), label) for k, w in enumerate(text.split()))
        lengths.update(len(part.split()) for part in text.split(" and "))
    assert sorted(lengths) == [5, 6, 7]
    assert min(lengths.values()) > 400
    for place, word, _ in list(told):
        praise, complaint = told[place, word, 1], told[place, word, 0]
        assert praise + complaint < 60 or 0.4 < praise / (praise + complaint) < 0.6


# The vocabulary


def test_ids_are_the_most_frequent_words_in_a_fixed_order():
    texts = ["b a c", "c d a", "c"]
    assert Vocabulary.of_texts(texts, 6).words[3:] == ["c", "a", "b"]
    assert len(Vocabulary.of_texts(texts, 100)) == 7
    assert len(Vocabulary.of_texts(texts, 3)) == 3


def test_texts_come_back_but_for_unknown_words():
    vocabulary = Vocabulary(["cat", "mat", "the"])
    ids = vocabulary.encode(["the cat", "the dog the mat", ""], class_token=True)
    assert ids.tolist() == [[CLASS, 5, 3, PAD, PAD], [CLASS, 5, UNKNOWN, 5, 4], [CLASS, *[PAD] * 4]]
    assert ids.dtype == torch.int64
    assert vocabulary.decode(ids[1]) == ["<class>", "the", "<unknown>", "the", "mat"]
    assert vocabulary.decode(vocabulary.encode(["the cat", "a b c"])[0]) == ["the", "cat"]
    assert vocabulary.encode(["", "cat"]).tolist() == [[PAD], [3]]
    assert vocabulary.encode([""]).dtype == torch.int64
    again = Vocabulary(vocabulary.words[3:])
    assert torch.equal(again.encode(["the mat"]), vocabulary.encode(["the mat"]))


# The model


def pooled_by_loops(x, model):
    """The vector of one sentence without padding, from the definition."""
    if model.pooling == "first":
        return x[0]
    if model.pooling == "mean":
        return sum(x) / len(x)
    if model.pooling == "max":
        return torch.stack([max(column) for column in x.T])
    exponentials = [torch.exp(model.query[0] @ word / E**0.5) for word in x]
    return sum(e * word for e, word in zip(exponentials, x, strict=True)) / sum(exponentials)


@each_pooling
def test_model_is_pytorchs_encoder_layers_and_pooling_by_loops_sentence_by_sentence(pooling):
    model, ids = random_model(pooling), sentences()
    logits, weights, share = model(ids, return_weights=True)
    assert weights.shape == (B, LAYERS, H, L, L)
    for n, length in enumerate(LENGTHS):
        waves = sinusoidal_positional_encoding(length, E).double()
        x = model.embed.weight[ids[n, :length]][None] * E**0.5 + waves
        for i, block in enumerate(model.blocks):
            layer = nn.TransformerEncoderLayer(
                E, H, 2 * E, 0.0, batch_first=True, norm_first=True, dtype=torch.float64
            )
            layer.self_attn = to_torch(block.attention)
            layer.linear1, layer.linear2 = block.feedforward[0], block.feedforward[3]
            layer.norm1, layer.norm2 = block.norm1, block.norm2
            normed = layer.norm1(x)
            expected = layer.self_attn(normed, normed, normed, average_attn_weights=False)[1]
            close(weights[n : n + 1, i, :, :length, :length], expected)
            x = layer(x)
        x = model.norm(x)[0]
        close(logits[n], model.head(pooled_by_loops(x, model)))
        if pooling != "max":
            close(share[n, :length] @ x, pooled_by_loops(x, model))
    close(model(ids), logits)


@each_pooling
def test_padding_changes_nothing_however_much_there_is_and_gets_no_weight(pooling):
    model, ids = random_model(pooling), sentences()
    logits, weights, share = model(ids, return_weights=True)
    more = torch.cat([ids, torch.zeros(B, 5, dtype=torch.long)], dim=1)
    close(model(more), logits)
    alone = torch.cat([model(ids[n : n + 1, :k]) for n, k in enumerate(LENGTHS)])
    close(alone, logits)
    with torch.no_grad():
        model.embed.weight[PAD] = 1e6
    close(model(ids), logits)
    assert (weights.movedim(-1, 1)[ids == PAD] == 0).all()
    assert (share[ids == PAD] == 0).all()
    close(share.sum(dim=1), torch.ones(B, dtype=torch.float64))


@pytest.mark.parametrize("pooling", ["mean", "max", "attention"])
def test_padding_in_front_is_hidden_too(pooling):
    model, ids = random_model(pooling, positions=False), sentences()
    close(model(ids.flip(1)), model(ids))


def test_share_of_max_counts_the_features_whose_largest_number_is_there():
    model = random_model("max")
    x = torch.zeros(1, 4, E, dtype=torch.float64)
    x[0, 2, :3], x[0, 1, 3:], x[0, 3] = 1.0, 1.0, 9.0
    pooled, share = model.pool(x, torch.tensor([[True, True, True, False]]))
    close(share, torch.tensor([[0, 9 / 12, 3 / 12, 0]], dtype=torch.float64))
    close(pooled, torch.ones(1, E, dtype=torch.float64))


@each_pooling
def test_default_device_does_not_matter_to_pooling(pooling):
    model, ids = random_model(pooling), sentences()
    x, real, _ = model.read(ids)
    expected = model.pool(x, real)
    with torch.device("meta"):
        close(model.pool(x, real), expected)


@each_pooling
def test_order_is_invisible_without_positions_and_visible_with_them(pooling):
    ids = sentences()[:1]
    mixed = ids[:, [0, *range(L - 1, 0, -1)]]  # the first word stays
    close(
        random_model(pooling, positions=False)(mixed), random_model(pooling, positions=False)(ids)
    )
    assert not torch.allclose(random_model(pooling)(mixed), random_model(pooling)(ids))


@each_pooling
def test_every_parameter_gets_a_gradient_but_padding_none(pooling):
    model = random_model(pooling)
    model(sentences()).square().sum().backward()
    for name, parameter in model.named_parameters():
        # a bias of the keys moves all scores of a row alike, and softmax does not see it
        assert (parameter.grad.norm() > 1e-8) == ("k_proj.bias" not in name), name
    assert (model.embed.weight.grad[PAD] == 0).all()


def test_words_start_as_large_as_documented_and_layers_differ():
    torch.manual_seed(0)
    model = AttentionClassifier(500, 32, 2, 4, 2)
    assert model.embed.weight.std().item() == pytest.approx(0.1, rel=0.05)
    first, second = (block.attention.q_proj.weight for block in model.blocks)
    assert not torch.equal(first, second)


def test_default_is_the_mean_with_positions_and_without_dropout():
    sizes = (WORDS, E, H, CLASSES, LAYERS)
    model = AttentionClassifier(*sizes).train()
    same = AttentionClassifier(*sizes, pooling="mean", positions=True, dropout=0.0)
    assert {block.feedforward[0].out_features for block in model.blocks} == {2 * E}
    same.load_state_dict(model.state_dict())
    assert torch.equal(model(sentences()), same(sentences()))
    assert torch.equal(model(sentences()), model.eval()(sentences()))


def test_dropout_acts_on_words_and_pooled_vector_and_in_training_only():
    model, ids = random_model(dropout=0.5), sentences()
    close(model(ids), random_model()(ids))
    seen = []
    model.dropout.register_forward_hook(lambda module, inputs, output: seen.append(output))
    model.train()(ids)
    assert [x.shape for x in seen] == [(B, L, E), (B, E)]
    assert all((x == 0).any() for x in seen)


def test_state_and_words_save_and_load():
    model, vocabulary = random_model("attention"), Vocabulary(f"w{i}" for i in range(WORDS - 3))
    file = io.BytesIO()
    torch.save({"words": vocabulary.words, "state": model.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    loaded = AttentionClassifier(WORDS, E, H, CLASSES, LAYERS, "attention").double().eval()
    loaded.load_state_dict(saved["state"])
    assert torch.equal(loaded(sentences()), model(sentences()))
    assert Vocabulary(saved["words"][3:]).words == vocabulary.words


def test_model_copies_and_runs_in_half_precision():
    model, ids = random_model("attention"), sentences()
    close(copy.deepcopy(model)(ids), model(ids))
    assert model.to(torch.bfloat16)(ids).dtype == torch.bfloat16
    model = model.float()
    close(model(ids.int()), model(ids))
    with torch.autocast("cpu", torch.bfloat16):
        assert model(ids).isfinite().all()


# Changed weights


def test_unchanged_weights_give_the_same_output_and_the_model_stays_as_it_is():
    model, ids = random_model(), sentences()
    logits, weights, _ = model(ids, return_weights=True)
    same, same_weights, _ = with_changed_weights(model, lambda w, mask: w)(ids, return_weights=True)
    close(same, logits)
    close(same_weights, weights)
    other = with_changed_weights(model, uniform_weights)
    assert not torch.allclose(other(ids), logits)
    assert all(type(block.attention) is MultiHeadAttention for block in model.blocks)
    with torch.no_grad():
        other.embed.weight.zero_()
    close(model(ids), logits)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"mask": padding_mask(LENGTHS)}])
def test_layer_with_unchanged_weights_is_the_layer(options):
    torch.manual_seed(0)
    x = torch.randn(B, L, E, dtype=torch.float64)
    for kv_heads in (H, 1):
        layer = MultiHeadAttention(E, H, num_kv_heads=kv_heads).double()
        changed = ChangedAttention(layer, lambda weights, mask: weights)
        close(changed(x, **options), layer(x, **options))


def test_uniform_heads_average_the_values_of_the_words():
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(E, H).double(), torch.randn(B, L, E, dtype=torch.float64)
    changed, mask = ChangedAttention(layer, uniform_weights), padding_mask(LENGTHS)
    output, weights = changed(x, mask=mask, return_weights=True)
    close(changed(x, mask=mask), output)
    for n, length in enumerate(LENGTHS):
        mean = layer.out_proj(layer.v_proj(x[n, :length]).mean(dim=0))
        close(output[n], mean.expand(L, E))
        assert (weights[n, :, :, :length] == 1 / length).all()
        assert (weights[n, :, :, length:] == 0).all()


def test_shuffled_weights_are_the_same_numbers_among_the_allowed_keys():
    mask = padding_mask(LENGTHS).flip(-1)  # padding in front
    noise = torch.rand(B, H, L, L, generator=torch.Generator().manual_seed(0))
    weights = noise.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    before = weights.clone()
    rng = torch.Generator().manual_seed(0)
    shuffled = shuffled_weights(weights, mask, rng)
    assert torch.equal(weights, before)
    assert torch.equal(shuffled.sort(dim=-1).values, weights.sort(dim=-1).values)
    assert (shuffled.masked_select(~mask) == 0).all()
    longest = (shuffled != weights)[0].any(dim=-1)
    assert longest.float().mean() > 0.9  # another order in nearly every row
    assert not torch.equal(shuffled_weights(weights, mask, rng), shuffled)


def test_generator_decides_how_weights_are_shuffled_and_the_global_one_stays():
    state, mask = torch.get_rng_state(), torch.ones(B, L).bool()
    weights = torch.rand(B, L, generator=torch.Generator().manual_seed(0))
    one, same, other = (
        shuffled_weights(weights, mask, torch.Generator().manual_seed(seed)) for seed in (4, 4, 5)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_every_order_of_shuffled_weights_is_as_likely():
    weights = torch.tensor([[0.5, 0.0, 0.3, 0.2]]).expand(6000, -1)
    mask = torch.tensor([True, False, True, True])
    shuffled = shuffled_weights(weights, mask, torch.Generator().manual_seed(0))
    counts = Counter(map(tuple, (10 * shuffled).round().int().tolist()))
    assert len(counts) == 6
    assert all(abs(n - 1000) < 120 for n in counts.values())


# Refusals, as a user meets them


def refuses(error, message, call, *args, **kwargs):
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    assert str(caught.value) == message


@pytest.mark.refusal
def test_refuses_libraries_that_are_missing_or_too_small(package):
    for name in ("no_such", "math"):  # math has no source files
        message = f"the package {name} must be installed: pip install {name}"
        refuses(ModuleNotFoundError, message, library_sentences, 1, [name])
    message = f"{package} must have 4 sentences; got 3"
    refuses(ValueError, message, library_sentences, 4, [package])
    refuses(ValueError, "count must be at least 1; got 0", library_sentences, 0)
    message = "libraries must be a list of texts; got 'numpy'"
    refuses(TypeError, message, library_sentences, 1, "numpy")


@pytest.mark.refusal
def test_refuses_no_opinions_and_a_seed_in_place_of_a_generator():
    refuses(ValueError, "pairs must be at least 1; got 0", opinions, 0, torch.Generator())
    refuses(TypeError, "generator must be a torch.Generator; got int", opinions, 1, 0)


@pytest.mark.refusal
def test_vocabulary_refuses_no_text_and_words_that_stand_twice():
    vocabulary = Vocabulary(["a"])
    refuses(ValueError, "texts must hold at least one text; got none", vocabulary.encode, [])
    refuses(TypeError, "texts must be a list of texts; got 'a'", vocabulary.encode, "a")
    refuses(TypeError, "texts must be a list of texts; got 'a'", Vocabulary.of_texts, "a", 3)
    refuses(ValueError, "size must be at least 0; got -1", Vocabulary.of_texts, ["a"], -1)
    refuses(TypeError, "words must be a list of texts; got 'a'", Vocabulary, "a")
    twice = "no word may stand twice; got {} more than once"
    refuses(ValueError, twice.format("a"), Vocabulary, ["b", "a", "c", "a"])
    refuses(ValueError, twice.format("<pad>"), Vocabulary, ["<pad>"])


@pytest.mark.refusal
def test_vocabulary_refuses_ids_that_are_no_row_of_its_own():
    decode = Vocabulary(["a"]).decode
    message = "ids must have shape (position) and hold at least one number; got (1, 1)"
    refuses(ValueError, message, decode, torch.tensor([[3]]))
    message = "ids must lie between 0 and 3; got 2 to 4"
    refuses(ValueError, message, decode, torch.tensor([2, 4]))
    refuses(TypeError, "ids must be an int64 or int32 tensor; got list", decode, [3])


@pytest.mark.refusal
def test_refuses_sizes_and_an_unknown_pooling():
    sizes = (WORDS, E, H, CLASSES, LAYERS)
    message = "pooling must be one of first, mean, max, attention; got 'sum'"
    refuses(ValueError, message, AttentionClassifier, *sizes, pooling="sum")
    names = "vocab_size", "embed_dim", "num_heads", "num_classes", "num_layers"
    for i, name in enumerate(names):
        wrong = [*sizes[:i], 0, *sizes[i + 1 :]]
        refuses(ValueError, f"{name} must be at least 1; got 0", AttentionClassifier, *wrong)
        wrong[i] = 2.5
        refuses(TypeError, f"{name} must be an integer; got 2.5", AttentionClassifier, *wrong)
    message = (
        "num_heads must divide embed_dim, each head takes embed_dim / num_heads of it; "
        "got embed_dim = 12, num_heads = 5"
    )
    refuses(ValueError, message, AttentionClassifier, WORDS, E, 5, 4, 1)
    message = "dropout must be a probability between 0 and 1; got 2"
    refuses(ValueError, message, AttentionClassifier, *sizes, dropout=2)


@pytest.mark.refusal
def test_refuses_ids_that_are_no_sentences_of_the_vocabulary():
    model, ids = random_model(), sentences()
    for wrong in (WORDS, -1):
        low, high = min(wrong, 0), max(wrong, WORDS - 1)
        message = f"ids must lie between 0 and {WORDS - 1}; got {low} to {high}"
        refuses(ValueError, message, model, ids.index_fill(1, torch.tensor([2]), wrong))
    for shape in ((0, L), (B, 0), (L,), (B, L, 1)):
        zeros = torch.ones(shape, dtype=torch.long)
        message = f"ids must have shape (batch, L) and hold at least one number; got {shape}"
        refuses(ValueError, message, model, zeros)
    ids[3:] = PAD
    message = "each sentence must have a word; sentence 3 has only padding"
    refuses(ValueError, message, model, ids)
    message = "ids must be an int64 or int32 tensor; got"
    refuses(TypeError, f"{message} torch.float32", model, ids.float())
    refuses(TypeError, f"{message} list", model, ids.tolist())
    message = (
        "each sentence must have a word at position 0, which pooling 'first' reads; "
        "sentence 3 has only padding"
    )
    ids = sentences()
    ids[3, 0] = PAD
    refuses(ValueError, message, random_model("first"), ids)


@pytest.mark.refusal
def test_changes_refuse_what_they_cannot_change():
    message = "model's blocks must be a list; got NoneType"
    refuses(TypeError, message, with_changed_weights, nn.Linear(1, 1), uniform_weights)
    message = "change must be a function; got str"
    refuses(TypeError, message, with_changed_weights, random_model(), "uniform")
    weights, mask = torch.ones(B, H, L, L), torch.ones(L, L).bool()
    for change in (uniform_weights, shuffled_weights):
        message = "weights must have a real floating dtype; got torch.int64"
        refuses(TypeError, message, change, weights.long(), mask)
        message = "mask must be a bool tensor, True = counts; got torch.int64"
        refuses(TypeError, message, change, weights, mask.long())
        message = "mask must broadcast to the shape of the weights = (5, 3, 7, 7); got (6, 7)"
        refuses(ValueError, message, change, weights, mask[1:])
    message = "generator must be a torch.Generator; got int"
    refuses(TypeError, message, shuffled_weights, weights, mask, 0)
