"""What every public function says about each argument when it is wrong.

CALLS holds one valid call of every public function and the kind of each argument. Every argument
is replaced in turn by all the wrong values of its kind: each must be refused by a ``raise`` of the
library, with a ValueError or TypeError whose message names the argument. An error from inside
PyTorch or NumPy does not count, even if it happens to name it.

`python tests/test_bad_input.py` prints the table: each call and the message that it gets.
"""

import datetime
import dis
import inspect
import math
import re
import sys
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import attention_lib
from attention_lib import (
    AttentionClassifier,
    Characters,
    CrossAttentionBlock,
    InductionModel,
    KeyValueCache,
    LanguageModel,
    LinearBiasAttention,
    MultiHeadAttention,
    PatchClassifier,
    PerHeadAttention,
    RecallTask,
    RepeatTask,
    RetrievalModel,
    RollingCache,
    RotaryAttention,
    SingleHeadAttention,
    Transducer,
    TransformerBlock,
    Vocabulary,
)
from attention_lib._numbers import is_finite

pytestmark = pytest.mark.refusal
LIBRARY = Path(attention_lib.__file__).parent

NOT_A_COUNT = ["3", 2.5, -1, True, [1], math.nan, torch.ones(2)]
NARROW = [np.uint8(3), np.int32(3), np.uint64(3)]  # which would wrap around
NOT_A_FLAG = ["yes", 1, 0.0, torch.ones(2), np.True_]
NOT_A_TENSOR = ["x", 3, [[1.0]], np.ones((2, 3, 4))]
NOT_AN_ARRAY = ["x", 1j, np.array(["a"]), np.array([None]), np.ones(3, bool), {}]
# a function of the valid value, for what depends on it
WRONG = {
    "axis": lambda _: ["0", 0.0, True, [0], 3, torch.ones(2)],
    "count": lambda _: [*NOT_A_COUNT, *NARROW],
    "any count": lambda _: NOT_A_COUNT,
    "integer": lambda _: ["3", 2.5, True, [1], math.nan, torch.ones(2), *NARROW],
    "flag": lambda _: NOT_A_FLAG,
    "number": lambda _: ["1", math.nan, 10**400, 1j, [1.0], torch.ones(2)],
    "probability": lambda _: ["1", math.nan, -0.5, 1.5, True, torch.ones(2)],
    "float tensor": lambda x: [*NOT_A_TENSOR, x.long(), x.to(torch.complex64), x.flatten()[0]],
    "tensor": lambda x: [*NOT_A_TENSOR, x.flatten()[0]],
    "ids": lambda x: [
        *NOT_A_TENSOR,
        x.double(),
        x > 0,
        x.flatten()[0],
        ["a"],
        [[1, 2], [3]],
        {1, 2},
    ],
    "any float tensor": lambda x: [*NOT_A_TENSOR, x.long(), x.to(torch.complex64)],
    "any mask": lambda x: [*NOT_A_TENSOR, x.long(), x.double()],
    "number mask": lambda x: [*NOT_A_TENSOR, x > 0, x + 2],
    "mask": lambda x: [*NOT_A_TENSOR, x.long(), x.double(), x[None, None, None]],
    "blocked mask": lambda x: [*NOT_A_TENSOR, x.long()],
    "layer mask": lambda _: [*NOT_A_TENSOR, torch.ones(2, 3), torch.ones(7, 7, 7, 7, 7) > 0],
    "array": lambda _: NOT_AN_ARRAY,
    "packed array": lambda x: ["x", 3, [1.0], x[None], x > 0, x.astype(complex)],
    "dtype": lambda _: ["float32", 32, np.float32],
    "float dtype": lambda _: ["float32", 32, np.float32, torch.int64, torch.float8_e4m3fn],
    "device": lambda _: ["nowhere", "cpu:x", 2.5, [1], -1],
    "blocks": lambda _: [3, [3], [(torch.ones(2, 3),)], [("s", "v")], [(torch.ones(2, 3), 3)]],
    "functions": lambda _: ["f", 3, {}, [abs], {1: abs}],
    "bool tensor": lambda _: [*NOT_A_TENSOR, torch.ones(7, 7)],
    "function": lambda _: ["f", 3],
    "module": lambda _: ["layer", 3],
    "generator": lambda _: [0, "0", np.random.default_rng(0)],
    "seed": lambda _: ["0", 0.5, -1, torch.ones(2)],
    "texts": lambda _: [3, [3], "text"],
    "text": lambda _: [3, ["en"]],
    "choice": lambda _: ["another", 3, ["mean"]],
    "date": lambda _: ["2026-01-31", 3],
    "pair of counts": lambda _: [
        3,
        (4,),
        (4.0, 4),
        ("a", "b"),
        (-4, 4),
        torch.tensor(4),
        (np.uint8(4), 4),
    ],
}


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def array(*shape):
    return np.random.default_rng(0).normal(size=shape)


def ones(*shape):
    return torch.ones(shape, dtype=torch.bool)


class Square(torch.nn.Module):
    """A function of its parameter alone."""

    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.ones(2))

    def forward(self):
        return self.x.square()


def kinds(**arguments):
    """The valid values and the kinds, each by name. A kind that ends in ? may be None."""
    return tuple({name: pair[i] for name, pair in arguments.items()} for i in (0, 1))


QUERY = {
    "query": (normal(2, 3, 4), "float tensor"),
    "key": (normal(2, 5, 4), "float tensor"),
}
HEAD = QUERY | {"value": (normal(2, 5, 6), "float tensor")}
OPTIONS = {"mask": (None, "layer mask?"), "is_causal": (False, "flag"), "scale": (None, "number?")}
KEYS = array(5, 4)
TABLE = {"query": (KEYS[0], "array"), "keys": (KEYS, "array"), "values": (array(5), "array")}
PACKED = {
    "inputs": (array(3, 2, 4), "packed array"),
    "in_proj_weight": (array(12, 4), "packed array"),
    "out_proj_weight": (array(4, 4), "packed array"),
    "in_proj_bias": (array(12), "packed array?"),
    "out_proj_bias": (array(4), "packed array?"),
}
SIZES = {"embed_dim": (8, "count"), "num_heads": (2, "count")}
LAYER = SIZES | {
    "kdim": (None, "count?"), "vdim": (None, "count?"), "num_kv_heads": (None, "count?"),
    "bias": (True, "flag"), "dropout": (0.0, "probability"),
}  # fmt: skip
BLOCK = SIZES | {
    "feedforward_dim": (None, "count?"), "dropout": (0.0, "probability"),
    "norm_first": (True, "flag"),
}  # fmt: skip
SELF = {"query": (normal(2, 3, 8), "float tensor"), "mask": (None, "layer mask?")}
FLAGS = {"is_causal": (False, "flag"), "return_weights": (False, "flag")}
CONTEXT = {
    "key": (normal(2, 3, 8), "float tensor?"), "value": (normal(2, 3, 8), "float tensor?"),
}  # fmt: skip
LENGTH = {
    "length": (3, "count"), "keys": (None, "count?"), "align": (None, "choice?"),
    "device": (None, "device?"),
}  # fmt: skip
IMAGES = {"images": (torch.rand(2, 1, 4, 4), "tensor"), "patch_size": (2, "count")}
CORE = {"batch": (1, "count"), "heads": (2, "count"), "q": (3, "count"), "k": (5, "count")}
CORE |= {"d": (4, "count"), "v": (None, "count?")}
CACHE = {
    "batch_size": (1, "count"), "num_kv_heads": (2, "count"), "capacity": (8, "count"),
    "width": (4, "count"), "dtype": (None, "float dtype?"), "device": (None, "device?"),
}  # fmt: skip
TO_MASK = {"mask": (ones(2, 3), "any mask")}

FROZEN = MultiHeadAttention(8, 2).requires_grad_(False)  # a cache takes no gradients
CALLS = {
    "softmax": kinds(x=(array(3), "array"), axis=(-1, "axis")),
    "hard_lookup": kinds(**TABLE),
    "nearest_lookup": kinds(**TABLE),
    "soft_lookup": kinds(**TABLE, temperature=(1.0, "number")),
    "attention_weights": kinds(**QUERY, **OPTIONS),
    "scaled_dot_product_attention": kinds(
        **HEAD, **OPTIONS, dropout_p=(0.0, "probability"), return_weights=(False, "flag")
    ),
    "SingleHeadAttention": kinds(
        embed_dim=(4, "count"), d_k=(2, "count"), d_v=(None, "count?"), bias=(True, "flag")
    ),
    "numpy_attention": kinds(**PACKED),
    "numpy_multi_head_attention": kinds(**PACKED, num_heads=(2, "count")),
    "score_statistics": kinds(
        d_k=(4, "any count"), scale=(None, "number?"), rows=(10, "any count"),
        keys=(5, "any count"), rng=(0, "seed"), draw=(None, "function?"),
    ),
    "softmax_jacobian": kinds(scores=(array(3), "array")),
    "split_heads": kinds(x=(normal(2, 3, 4), "tensor"), num_heads=(2, "count")),
    "merge_heads": kinds(x=(normal(2, 3, 4), "tensor")),
    "MultiHeadAttention": kinds(**LAYER),
    "PerHeadAttention": kinds(**SIZES, bias=(True, "flag")),
    "from_torch": kinds(module=(torch.nn.MultiheadAttention(8, 2), "module")),
    "to_torch": kinds(module=(MultiHeadAttention(8, 2), "module"), batch_first=(True, "flag")),
    "check_gradients": kinds(
        function=(Square(), "function"), second=(True, "flag"), seed=(0, "seed")
    ),
    "causal_mask": kinds(**LENGTH),
    "window_mask": kinds(**LENGTH, left=(1, "count?"), right=(0, "count?")),
    "padding_mask": kinds(lengths_or_ids=(torch.tensor([1, 2]), "ids"), keys=(3, "count?")),
    "block_diagonal_mask": kinds(
        lengths=(torch.tensor([1, 2]), "ids"), key_lengths=(torch.tensor([1, 2]), "ids?")
    ),
    "segment_mask": kinds(
        segments=(torch.tensor([1, 2]), "ids"), key_segments=(torch.tensor([1, 2]), "ids?")
    ),
    "to_additive": kinds(**TO_MASK, dtype=(torch.float32, "float dtype")),
    "from_additive": kinds(mask=(torch.zeros(2, 3), "any float tensor")),
    "to_torch_attn_mask": kinds(**TO_MASK, num_heads=(None, "count?")),
    "from_torch_attn_mask": kinds(
        attn_mask=(ones(2, 3), "blocked mask"), num_heads=(None, "count?")
    ),
    "to_key_padding_mask": kinds(mask=(ones(2, 1, 1, 3), "mask")),
    "from_key_padding_mask": kinds(key_padding_mask=(ones(2, 3), "blocked mask")),
    "from_ones_and_zeros": kinds(mask=(torch.eye(3), "number mask")),
    "to_ones_and_zeros": kinds(**TO_MASK, dtype=(torch.int64, "dtype")),
    "TransformerBlock": kinds(**BLOCK, attention=(None, "module?")),
    "CrossAttentionBlock": kinds(**BLOCK),
    "sinusoidal_positional_encoding": kinds(length=(3, "count"), embed_dim=(4, "count")),
    "rotary": kinds(
        x=(normal(2, 3, 4), "float tensor"), positions=(torch.arange(3), "tensor?"),
        base=(10.0, "number"),
    ),
    "linear_bias_slopes": kinds(num_heads=(2, "count")),
    "RotaryAttention": kinds(**LAYER),
    "LinearBiasAttention": kinds(**LAYER),
    "RecallTask": kinds(num_keys=(8, "count"), num_values=(4, "count")),
    "RepeatTask": kinds(vocab_size=(8, "count")),
    "RetrievalModel": kinds(num_keys=(8, "count"), num_values=(4, "count"), embed_dim=(8, "count")),
    "InductionModel": kinds(vocab_size=(8, "count"), **SIZES, num_layers=(1, "count")),
    "after_earlier_copies": kinds(tokens=(torch.tensor([[1, 2, 1]]), "ids")),
    "weight_on": kinds(
        weights=(torch.rand(2, 2, 3, 3), "float tensor"), marked=(ones(2, 3, 3), "mask")
    ),
    "library_sentences": kinds(count=(1, "count"), libraries=(["numpy"], "texts")),
    "opinions": kinds(pairs=(2, "count"), generator=(torch.Generator(), "generator")),
    "Vocabulary": kinds(words=(["a", "b"], "texts")),
    "AttentionClassifier": kinds(
        vocab_size=(8, "count"), **SIZES, num_classes=(2, "count"), num_layers=(1, "count"),
        pooling=("mean", "choice"), positions=(True, "flag"), dropout=(0.0, "probability"),
    ),
    "uniform_weights": kinds(
        weights=(torch.rand(2, 3), "float tensor"), mask=(ones(2, 3), "mask")
    ),
    "shuffled_weights": kinds(
        weights=(torch.rand(2, 3), "float tensor"), mask=(ones(2, 3), "mask"),
        generator=(None, "generator?"),
    ),
    "with_changed_weights": kinds(
        model=(AttentionClassifier(8, 8, 2, 2, 1), "module"),
        change=(lambda weights, mask: weights, "function"),
    ),
    "write_date": kinds(
        date=(datetime.date(2026, 1, 31), "date"), format=("long", "text"),
        locale=("en", "text"),
    ),
    "date_pairs": kinds(train=(4, "count"), test=(2, "count"), seed=(0, "seed")),
    "weight_on_field": kinds(
        weights=(torch.rand(2, 3, 4), "float tensor"), fields=(["yymm", "mmyy"], "texts"),
        letter=("y", "choice"),
    ),
    "Characters": kinds(texts=(["ab", "c"], "texts")),
    "Transducer": kinds(
        source_size=(5, "count"), target_size=(6, "count"), embed_dim=(8, "count")
    ),
    "shift_right": kinds(target=(torch.tensor([[3, 4]]), "ids")),
    "greedy_decode": kinds(
        model=(Transducer(5, 6, 8).eval(), "module"), source=(torch.tensor([[1, 2]]), "ids"),
        max_length=(3, "count"),
    ),
    "patchify": kinds(**IMAGES),
    "unpatchify": kinds(
        patches=(torch.rand(2, 4, 4), "tensor"), image_size=((4, 4), "pair of counts"),
        patch_size=(2, "count"),
    ),
    "replace_patches": kinds(
        **IMAGES, donors=(torch.rand(2, 1, 4, 4), "tensor"),
        chosen=(torch.tensor([[0], [1]]), "ids"),
    ),
    "PatchClassifier": kinds(
        image_size=((4, 4), "pair of counts"), patch_size=(2, "count"), num_classes=(3, "count"),
        **SIZES, num_layers=(1, "count"), channels=(1, "count"), dropout=(0.0, "probability"),
    ),
    "rollout": kinds(weights=(torch.full((1, 2, 3, 3), 1 / 3), "float tensor")),
    "measure": kinds(
        function=(lambda: None, "function"), repeats=(1, "count"), seconds=(1e-4, "number")
    ),
    "compare": kinds(
        functions=({"one": lambda: torch.ones(1)}, "functions"), repeats=(1, "count"),
        seconds=(1e-4, "number"), tolerance=(1e-4, "number"), baseline=("one", "choice?"),
    ),
    "roofline": kinds(
        size=(8, "count?"), copied=(8, "count"), repeats=(1, "count"),
        dtype=(torch.float32, "float dtype"), device=("cpu", "device?"),
    ),
    "attention_flops": kinds(**CORE, backward=(False, "flag"), recompute=(False, "flag")),
    "attention_bytes": kinds(
        **CORE, backward=(False, "flag"), fused=(True, "flag"),
        dtype=(torch.float32, "float dtype"),
    ),
    "bytes_moved": kinds(function=(lambda: None, "function")),
    "page_faults": kinds(function=(lambda: None, "function")),
    "online_softmax": kinds(blocks=([(torch.ones(2, 3), torch.ones(3, 4))], "blocks")),
    "tiled_attention": kinds(
        **HEAD, **OPTIONS, block_size=(2, "count"), return_lse=(False, "flag")
    ),
    "KeyValueCache": kinds(**CACHE),
    "RollingCache": kinds(**CACHE),
    "cache_bytes": kinds(
        num_layers=(1, "count"), num_kv_heads=(2, "count"), width=(4, "count"),
        positions=(3, "count"), batch_size=(1, "count"), bytes_per_number=(2, "count"),
    ),
    "attend_with_cache": kinds(
        layer=(FROZEN, "module"), x=(normal(1, 1, 8), "float tensor"),
        cache=(KeyValueCache(1, 2, 99, 4), "module"), real=(None, "bool tensor?"),
    ),
    "LanguageModel": kinds(
        vocabulary_size=(8, "count"), **SIZES, num_layers=(1, "count"),
        num_kv_heads=(None, "count?"), feedforward_dim=(None, "count?"), window=(None, "count?"),
    ),
    "next_ids": kinds(
        scores=(normal(2, 8), "float tensor"), temperature=(1.0, "number"),
        top_k=(None, "count?"), generator=(None, "generator?"),
    ),
    "generate": kinds(
        model=(LanguageModel(8, 8, 2, 1), "module"), ids=(torch.tensor([[1, 2]]), "ids"),
        steps=(1, "count"), temperature=(1.0, "number"), top_k=(None, "count?"),
        generator=(None, "generator?"), real=(None, "bool tensor?"),
    ),
    "group_heads": kinds(layer=(MultiHeadAttention(8, 2), "module"), num_kv_heads=(1, "count")),
    "zigzag_positions": kinds(
        length=(8, "count"), world_size=(2, "count"), rank=(0, "count")
    ),
}  # fmt: skip
LAYERS = {
    "MultiHeadAttention": (MultiHeadAttention(8, 2), kinds(**SELF, **CONTEXT, **FLAGS)),
    "PerHeadAttention": (PerHeadAttention(8, 2), kinds(**SELF, **CONTEXT, **FLAGS)),
    "SingleHeadAttention": (SingleHeadAttention(8, 2), kinds(**SELF, **CONTEXT, **FLAGS)),
    "RotaryAttention": (RotaryAttention(8, 2), kinds(**SELF, **CONTEXT, **FLAGS)),
    "LinearBiasAttention": (LinearBiasAttention(8, 2), kinds(**SELF, **CONTEXT, **FLAGS)),
    "TransformerBlock": (
        TransformerBlock(8, 2),
        kinds(x=(normal(2, 3, 8), "float tensor"), mask=(None, "layer mask?"), **FLAGS),
    ),
    "CrossAttentionBlock": (
        CrossAttentionBlock(8, 2),
        kinds(
            x=(normal(2, 3, 8), "float tensor"), memory=(normal(2, 4, 8), "float tensor"),
            mask=(None, "layer mask?"), memory_mask=(None, "layer mask?"), **FLAGS,
        ),
    ),
    "RetrievalModel": (
        RetrievalModel(8, 4, 8),
        kinds(
            keys=(torch.tensor([[1, 2]]), "ids"), values=(torch.tensor([[1, 2]]), "ids"),
            query=(torch.tensor([1]), "ids"), return_weights=(False, "flag"),
        ),
    ),
    "InductionModel": (
        InductionModel(8, 8, 2, 1),
        kinds(tokens=(torch.tensor([[1, 2]]), "ids"), return_weights=(False, "flag")),
    ),
    "AttentionClassifier": (
        AttentionClassifier(8, 8, 2, 2, 1),
        kinds(ids=(torch.tensor([[2, 3]]), "ids"), return_weights=(False, "flag")),
    ),
    "Transducer": (
        Transducer(5, 6, 8),
        kinds(
            source=(torch.tensor([[1, 2]]), "ids"), inputs=(torch.tensor([[1, 2]]), "ids"),
            return_weights=(False, "flag"),
        ),
    ),
    "PatchClassifier": (
        PatchClassifier((4, 4), 2, 3, embed_dim=8, num_heads=2, num_layers=1),
        kinds(images=(torch.rand(2, 1, 4, 4), "float tensor"), return_weights=(False, "flag")),
    ),
}  # fmt: skip
# and public methods, or functions that are called in a second way
WORDS, LETTERS = Vocabulary(["a", "b"]), Characters(["ab"])
APPENDED = {
    "key": (normal(1, 2, 1, 4), "float tensor"), "value": (normal(1, 2, 1, 4), "float tensor"),
    "real": (None, "bool tensor?"),
}  # fmt: skip
READ = {"length": (1, "count"), "real": (None, "bool tensor?")}
CALLED = {
    "padding_mask of ids": (
        attention_lib.padding_mask,
        kinds(lengths_or_ids=(torch.tensor([[1, 0]]), "ids"), pad_id=(0, "integer?")),
    ),
    "KeyValueCache.append": (KeyValueCache(1, 2, 99, 4).append, kinds(**APPENDED)),
    "RollingCache.append": (RollingCache(1, 2, 99, 4).append, kinds(**APPENDED)),
    "KeyValueCache.next_positions": (KeyValueCache(1, 2, 9, 4).next_positions, kinds(**READ)),
    "KeyValueCache.rewind": (KeyValueCache(1, 2, 9, 4).rewind, kinds(length=(1, "count"))),
    "RollingCache.rewind": (RollingCache(1, 2, 9, 4).rewind, kinds(length=(1, "count"))),
    "LanguageModel.new_caches": (
        LanguageModel(8, 8, 2, 1).new_caches,
        kinds(batch_size=(2, "count"), capacity=(3, "count")),
    ),
    "PerHeadAttention.from_multi_head": (
        PerHeadAttention.from_multi_head, kinds(layer=(MultiHeadAttention(8, 2), "module"))
    ),
    "RecallTask.draw": (
        RecallTask().draw,
        kinds(batch=(2, "count"), slots=(3, "count"), generator=(None, "generator?")),
    ),
    "RepeatTask.draw": (
        RepeatTask().draw,
        kinds(batch=(2, "count"), length=(4, "count"), generator=(None, "generator?")),
    ),
    "Vocabulary.of_texts": (
        Vocabulary.of_texts, kinds(texts=(["a b"], "texts"), size=(4, "count"))
    ),
    "Vocabulary.encode": (
        WORDS.encode, kinds(texts=(["a b"], "texts"), class_token=(True, "flag"))
    ),
    "Vocabulary.decode": (WORDS.decode, kinds(ids=(torch.tensor([3, 4]), "ids"))),
    "Characters.encode": (LETTERS.encode, kinds(texts=(["ab"], "texts"), end=(True, "flag"))),
    "Characters.decode": (LETTERS.decode, kinds(ids=(torch.tensor([[3, 4]]), "ids"))),
    "AttentionClassifier.read": (
        AttentionClassifier(8, 8, 2, 2, 1).read, kinds(ids=(torch.tensor([[2, 3]]), "ids"))
    ),
    "Transducer.encode": (
        Transducer(5, 6, 8).encode, kinds(source=(torch.tensor([[1, 2]]), "ids"))
    ),
}  # fmt: skip


# masks in any number, or a GPU is needed: refusals are in their own tests
ELSEWHERE = {"combine_masks", "flash_attention"}
# takes what read gives
ELSEWHERE |= {"AttentionClassifier.pool"}
# and these need several processes
ELSEWHERE |= {
    "HeadParallelAttention", "ring_attention", "run_ranks", "count_communication", "RankError",
}  # fmt: skip


def everything():
    for name, (valid, kind) in CALLS.items():
        yield name, getattr(attention_lib, name), valid, kind
    for name, (layer, (valid, kind)) in LAYERS.items():
        yield f"a {name}", layer, valid, kind
    for name, (function, (valid, kind)) in CALLED.items():
        yield name, function, valid, kind


def wrong_values(valid, kind):
    """Pairs of an argument and a wrong value of it."""
    for argument, kind_of_argument in kind.items():
        wrong = [] if kind_of_argument.endswith("?") else [None]
        wrong += WRONG[kind_of_argument.removesuffix("?")](valid[argument])
        for value in wrong:
            yield argument, value


def wrong_calls():
    for name, function, valid, kind in everything():
        for number, (argument, value) in enumerate(wrong_values(valid, kind)):
            yield pytest.param(function, valid, argument, value, id=f"{name}-{argument}-{number}")


@pytest.mark.parametrize(
    ("function", "valid"), [pytest.param(f, v, id=n) for n, f, v, _ in everything()]
)
def test_valid_call_is_accepted(function, valid):
    function(**valid)


@pytest.mark.parametrize(
    ("function", "valid", "kind"), [pytest.param(f, v, k, id=n) for n, f, v, k in everything()]
)
def test_numpys_int64_is_an_integer(function, valid, kind):
    counts = [name for name in valid if kind[name].removesuffix("?").endswith("count")]
    given = {name: np.int64(valid[name]) for name in counts if valid[name] is not None}
    function(**valid | given)


@pytest.mark.parametrize(
    ("function", "valid", "kind"), [pytest.param(f, v, k, id=n) for n, f, v, k in everything()]
)
def test_fraction_is_a_number(function, valid, kind):
    numbers = [name for name in valid if kind[name].removesuffix("?") == "number"]
    function(**valid | dict.fromkeys(numbers, Fraction(1, 2)))


def test_what_a_float64_can_hold_is_finite():
    for number in (sys.float_info.max, -sys.float_info.max, Fraction(1, 3), np.float16(2), 0):
        assert is_finite(number)
    for other in (math.inf, -math.inf, math.nan, 10**400, -(10**400), 1j, "1", None):
        assert not is_finite(other)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: attention_lib.causal_mask(np.uint8(3)),
            "length must be an integer of Python or an int64; got np.uint8(3)",
        ),
        (
            lambda: attention_lib.attention_weights(*[torch.ones(2, 3)] * 2, is_causal=np.True_),
            "is_causal must be True or False; got numpy.bool",
        ),
    ],
)
def test_types_of_numpy_are_told_from_those_of_python(call, message):
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == message


def is_refusal(error):
    """Whether a ``raise`` in the library's own code gave the error.

    An error of C++ code surfaces in the frame that called it, so the file alone proves nothing.
    """
    last = error.__traceback__
    while last.tb_next:
        last = last.tb_next
    code = last.tb_frame.f_code
    raised = code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return raised and Path(code.co_filename).is_relative_to(LIBRARY)


@pytest.mark.parametrize(("function", "valid", "argument", "value"), list(wrong_calls()))
def test_wrong_argument_is_refused_by_name(function, valid, argument, value):
    with pytest.raises((TypeError, ValueError)) as caught:
        function(**valid | {argument: value})
    # the block's two attention layers both call theirs mask
    names = argument.removeprefix("memory_").replace("_or_", "|")
    assert re.search(rf"\b({names})\b", str(caught.value))
    assert is_refusal(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.zeros(2, dtype="x"),  # C++, in a frame of this file
        lambda: attention_lib._arguments._integers(0, None),  # the interpreter, in the library
        lambda: attention_lib.single_head._scores(torch.ones(2, 3), torch.ones(2, 4), 1.0),  # C++
        lambda: torch.nn.Unflatten(0, "x"),  # a raise of PyTorch
    ],
)
def test_error_of_others_is_no_refusal(call):
    with pytest.raises((TypeError, AttributeError, RuntimeError)) as caught:
        call()
    assert not is_refusal(caught.value)


def test_every_public_name_is_called():
    assert set(attention_lib.__all__) <= set(CALLS) | ELSEWHERE


def test_the_library_lists_its_names_and_refuses_others():
    assert {"__doc__", *attention_lib.__all__} <= set(dir(attention_lib))
    with pytest.raises(AttributeError, match="module 'attention_lib' has no attribute 'attend'"):
        _ = attention_lib.attend


def test_every_public_method_is_called():
    classes = {n: c for n in CALLS if isinstance(c := getattr(attention_lib, n), type)}
    methods = {
        f"{name}.{method}"
        for name, owner in classes.items()
        for method in vars(owner)
        if not method.startswith("_") and method != "forward"
        if "ǁ" not in method  # one that mutmut adds
        if callable(function := getattr(owner, method))
        if set(inspect.signature(function).parameters) - {"self"}
    }
    assert methods <= set(CALLED) | ELSEWHERE


def test_every_argument_is_given():
    given = defaultdict(set)
    for _, function, _, kind in everything():
        given[function] |= set(kind)
    for function, names in given.items():
        call = function.forward if isinstance(function, torch.nn.Module) else function
        parameters = inspect.signature(call).parameters.values()
        assert {p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD} <= names, function


def shown(value):
    """A wrong value in a few words."""
    if isinstance(value, torch.Tensor | np.ndarray):
        kind = "tensor" if isinstance(value, torch.Tensor) else "array"
        return f"{str(value.dtype).removeprefix('torch.')} {kind} {tuple(value.shape)}"
    return getattr(value, "__name__", None) or " ".join(f"{value!r:.30}".split())


def print_table():
    """Each wrong call and the message it gets, a line each."""
    for name, function, valid, kind in everything():
        for argument, value in wrong_values(valid, kind):
            try:
                function(**valid | {argument: value})
            except Exception as error:
                call = f"{name}({argument}={shown(value)})"
                print(f"{call:60} {type(error).__name__}: {' '.join(str(error).split())}")


if __name__ == "__main__":
    print_table()
