"""The tests of the library catch faults, many of them shipped by real code.

Each fault is planted in a copy of the library, and the module's own tests must fail there. The
test that caught a fault before is tried first, and all of them where it does not catch it now:
`python tests/test_planted_faults.py` writes down anew which one it is (tests/caught_by.json).
"""

import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from tqdm import tqdm

# Each fault needs a fresh process, and most of a test run's time is the import of torch. Where
# processes can be forked, all of them come from one that has imported it, and nothing of ours.
processes = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
PRELOADED = [
    "hypothesis.strategies", "matplotlib.pyplot", "numpy", "torch", "torch._dynamo",
    "torch.distributed.tensor.parallel",
]  # fmt: skip
PASSED, FAILED = 100, 101  # a process that breaks down exits with 1, as failing tests do

TESTS = Path(__file__).parent
ROOT = TESTS.parent
CAUGHT_BY = TESTS / "caught_by.json"
HOME_OF_TESTS = {"_validate": "single_head"}
FAULTS = {
    "lookup": {
        "no maximum subtracted": ("np.exp(x - np.where(np.isneginf(peak), 0, peak))", "np.exp(x)"),
        "sum over everything": ("exponentials.sum(axis=axis, keepdims=True)", "exponentials.sum()"),
        "first of equal keys": ("len(keys) - 1 - equal[..., ::-1]", "equal"),
        "farthest key": ("(query @ keys.T).argmax", "(query @ keys.T).argmin"),
        "temperature upside down": ("scores / float(temperature)", "scores * float(temperature)"),
        "temperature 0 accepted": ("not temperature > 0", "temperature < 0"),
    },
    "single_head": {
        "mask upside down": ("~(allowed | empty)", "(allowed | empty)"),
        "attends to the future": (".tril()", ".triu()"),
        "is_causal drops the mask": ("mask & triangle", "triangle"),
        "NaN for a row without keys": ("weights.masked_fill(empty, 0.0)", "weights / ~empty"),
        "mean of all values for a row without keys": ("output.masked_fill(empty, 0.0)", "output"),
        "masked by a large finite number": ("-math.inf))", "-1e4))"),
        "divided by the width, not its root": ("1 / math.sqrt(query", "1 / (query"),
        "scale ignored": ("alpha=scale", "alpha=query.shape[-1] ** -0.5"),
        "softmax over the queries": (
            "return scores.softmax(dim=-1)",
            "return scores.softmax(dim=-2)",
        ),
        "half precision overflows": ("query.float(), key.float()", "query, key"),
        "weights after dropout returned": ("(output, _to(weights", "(output, _to(kept"),
        "autocast's dtype returned": (
            "return _to(output, query.dtype)  # another",
            "return output  # another",
        ),
        "weights in another dtype": (
            "(output, _to(weights, query.dtype))",
            "(output, weights)",
        ),
        "query and key projection swapped": ("self.q_proj(query)", "self.k_proj(query)"),
        "input bias left out": ("(0 if in_proj_bias is None else in_proj_bias)", "0"),
        "attends across the batch": ("x.swapaxes(0, 1) for x in np", "x for x in np"),
    },
    "_validate": {
        "error without the shape": ("{name: tuple(tensor.shape)", "{name: ()"),
        "samples broadcast": ("shape[:-2] != query[:-2]", "len(shape) != len(query)"),
        "is_causal with two lengths": ("if is_causal and query", "if False and query"),
        "numbers as mask": ("mask.dtype != torch.bool", "mask.dtype.is_complex"),
    },
    "multi_head": {
        "reshape without transpose": (
            "torch.unflatten(x, -1, (num_heads, -1)).transpose(-3, -2)",
            "x.reshape(*x.shape[:-2], num_heads, x.shape[-2], -1)",
        ),
        "merge without transpose": (
            "x.transpose(-3, -2).flatten(-2)",
            "x.reshape(*x.shape[:-3], x.shape[-2], -1)",
        ),
        "key heads dealt out in turn": (
            "x.repeat_interleave(group, dim=1)",
            "x.repeat(1, group, 1, 1)",
        ),
        "mask of the samples read as one of the heads": (
            "mask[:, None] if mask is not None and mask.ndim == 3",
            "mask[None] if mask is not None and mask.ndim == 3",
        ),
        "dropout in evaluation": ("self.dropout if self.training else 0.0", "self.dropout"),
        "value defaults to the query": (
            "value = key if value is None else value\n        _validate",
            "value = query if value is None else value\n        _validate",
        ),
        "divided by the root of the full width": (
            "math.sqrt(embed_dim // num_heads)",
            "math.sqrt(embed_dim)",
        ),
        "NumPy attends across the batch": (
            "parts.transpose(2, 1, 3, 0, 4)",
            "parts.transpose(2, 0, 3, 1, 4)",
        ),
        "heads of one layer taken in another order": (
            "p.chunk(layer.num_heads)[i]",
            "p.chunk(layer.num_heads)[-i]",
        ),
    },
    "parity": {
        "no biases copied": ("if module.in_proj_bias is not None:", "if False:"),
        "key and value in another order": (
            '("q_proj.weight", "k_proj.weight", "v_proj.weight"), weights',
            '("q_proj.weight", "v_proj.weight", "k_proj.weight"), weights',
        ),
        "aliases instead of copies": (
            "load_state_dict(_by_our_names(module))",
            "load_state_dict(_by_our_names(module), assign=True)",
        ),
        "batch_first ignored": (
            "batch_first=batch_first,\n        device",
            "batch_first=True,\n        device",
        ),
        "a gradient that exists is enough": (
            "except GradcheckError:\n            wrong",
            "except GradcheckError if False else ():\n            wrong",
        ),
        "plain sum of the outputs": ("(x * factor).sum()", "x.sum()"),
        "checked in training mode": (".double().eval()", ".double()"),
        "every parameter blamed": (
            "wrong.append(_worst(name, alone, tensor))",
            "wrong += [_worst(n, alone, t) for n, t in tensors.items()]",
        ),
    },
    "masks": {
        "diagonal blocked": ("mask.tril(offset + right)", "mask.tril(offset + right - 1)"),
        "triangle transposed": (
            "else mask.tril(offset + right)",
            "else mask.triu(-offset - right)",
        ),
        "alignment by the longer side": ("keys - length if align", "abs(keys - length) if align"),
        "padding upside down": ("(ids != pad_id)", "(ids == pad_id)"),
        "padding hides queries": (
            "(ids != pad_id)[:, None, None, :]",
            "(ids != pad_id)[:, None, :, None]",
        ),
        "a large finite number": ("~mask, -math.inf", "~mask, -1e4"),
        "bias taken for a mask": (
            '_only(mask, allowed | (mask <= -1000), "0',
            '_only(mask, mask <= 9, "0',
        ),
        "PyTorch's meaning of True forgotten": ("return ~each", "return each"),
        "heads first in the folded axis": (
            "each.expand(-1, num_heads, -1, -1).flatten(0, 1)",
            "each.expand(-1, num_heads, -1, -1).transpose(0, 1).flatten(0, 1)",
        ),
    },
    "scaling": {
        "divided by the width": ("1 / math.sqrt(d_k)", "1 / d_k"),
        "sign turned": ("return diagonal - weights", "return diagonal + weights"),
        "same keys for every query": ("np.arange(rows) % groups", "0 * np.arange(rows)"),
        "standard deviation for variance": ("scores.var()", "scores.std()"),
    },
    # what only a layer of several heads shows
    "_validate of multi_head": {
        "batch sizes that differ": ("if not query[0] == key[0] == value[0]:", "if False:"),
        "mask (batch, 1, S) broadcasts": (
            "(batch, *matrix)):\n",
            "(batch, *matrix), (batch, 1, keys)):\n",
        ),
        "heads that do not divide": ("if embed_dim % num_heads:", "if False:"),
        "width unchecked": ("tensor.ndim != 3 or tensor.shape[2] != width", "tensor.ndim != 3"),
    },
    # query, key and value as one product
    "_packed of packed": {
        "parts in another order": ("self.parts += parts\n", "self.parts += parts[::-1]\n"),
        "moved without its numbers": ("torch.cat([p.detach()", "torch.cat([p.detach() * 0"),
        "hooks not looked for": ("            or layer._forward_hooks\n", ""),
        "hooks of all modules not looked for": ("every_module._global_forward_hooks or ", ""),
        "replaced layer taken for a plain one": (
            "type(layer) is not nn.Linear",
            "not isinstance(layer, nn.Linear)",
        ),
        "memory not looked at": ("plain and p.is_set_to(part)", "plain"),
        "start of the memory is enough": ("p.is_set_to(part)", "p.data_ptr() == part.data_ptr()"),
        "another dtype over the same memory": (" and p.dtype == part.dtype", ""),
        "memory of other processes moved": (" and not p.is_shared()", ""),
        "parameters moved out of a vector": ("return alike and (len(sizes) == 3", "return (alike"),
        "constants in a trace": ("get_proxy_mode() is not None", "False"),
    },
    "multi_head of packed": {
        "keys from elsewhere ignored": ("query is key is value and", "key is value and"),
        "stale memory after a move": (
            "if held and not self._block.holds(self._inputs()):",
            "if False:",
        ),
        "gradients lost": (" and not torch.is_grad_enabled():", ":"),
    },
    "single_head of properties": {
        "strides taken for granted": ("key.flatten(0, -3)", "key.view(-1, *key.shape[-2:])"),
        "maximum not subtracted": (
            "return scores.softmax(dim=-1)",
            "return scores.exp() / scores.exp().sum(-1, keepdim=True)",
        ),
        "mask times weights": (
            "weights = _softmax(scores.masked_fill(~(allowed | empty), -math.inf))",
            "weights = _softmax(scores) * (allowed | empty)",
        ),
        "causal kernel with any scale": ("scale <= 0):", "scale < -1e9):"),
    },
    "tiling of properties": {
        "input changed in place": (
            "of_rows = query[..., rows, :] * scale",
            "of_rows = query[..., rows, :].mul_(scale)",
        ),
        "no key gives 0 / 0": ("total.masked_fill(total == 0, 1.0)", "total"),
    },
    "single_head of multi_head": {
        "autocast lowers the scores": ("enabled=False", "enabled=True"),
    },
    "block": {
        "norms in the other order": ("norm(x) if block.norm_first else x)", "x)"),
        "no residual": ("x = x + block.dropout(change)", "x = block.dropout(change)"),
        "dropout on the whole stream": (
            "x = x + block.dropout(change)",
            "x = block.dropout(x + change)",
        ),
        "no dropout in the hidden layer": (
            "nn.ReLU(), nn.Dropout(dropout)",
            "nn.ReLU(), nn.Dropout(0)",
        ),
        "no dropout on the weights": (
            "            attention = MultiHeadAttention(embed_dim, num_heads, dropout=dropout)",
            "            attention = MultiHeadAttention(embed_dim, num_heads)",
        ),
        "mask of the memory forgotten": ("mask=memory_mask", "mask=None"),
        "memory attends to itself": (
            "self.cross_attention, key=memory",
            "self.cross_attention, value=memory",
        ),
        "one frequency for each column": (
            "torch.arange(0, width, 2,",
            "0.5 * torch.arange(0, width, 2,",
        ),
        "sine and cosine in halves": (
            "angles.cos()), dim=-1).flatten(-2)",
            "angles.cos()), dim=-2).flatten(-2)",
        ),
        "turned the other way": (
            "first * cos - second * sin, first * sin",
            "first * cos + second * sin, -first * sin",
        ),
        "halves for pairs": ("x.unflatten(-1, (-1, 2)).unbind(-1)", "x.chunk(2, -1)"),
        "angles in float32": (
            "dtype=torch.float64, device=positions.device",
            "device=positions.device",
        ),
        "values turned too": (
            "rotary(query), rotary(key), value",
            "rotary(query), rotary(key), rotary(value)",
        ),
        "keys not turned": ("rotary(query), rotary(key), value", "rotary(query), key, value"),
        "bias scaled with the scores": ("slopes * math.sqrt(d + 2)", "slopes"),
        "bias of the wrong sign": (
            "torch.arange(key.shape[-2], d",
            "-torch.arange(key.shape[-2], d",
        ),
        "positions rounded to half precision": (
            "position // 256, position % 256",
            "0 * position, position",
        ),
        "width of the input unchecked": (
            '_validate.block_input("x", x,',
            '(lambda *_: None)("x", x,',
        ),
    },
    "retrieval": {
        "a key twice in a table": (
            "keys = _shuffled(batch, self.num_keys, generator)[:, :slots]",
            "keys = torch.randint(self.num_keys, (batch, slots), generator=generator)",
        ),
        "answer of another slot": (
            "for x in (keys, values)))",
            "for x in (keys, values.roll(1, 1))))",
        ),
        "generator ignored": (
            "torch.randint(self.num_values, (batch, slots), generator=generator)",
            "torch.randint(self.num_values, (batch, slots))",
        ),
        "value left out of the slot": (
            "self.key_embedding(keys) + self.value_embedding(values)",
            "self.key_embedding(keys) + 0 * self.value_embedding(values)",
        ),
        "scores not scaled": ("/ queries.shape[-1] ** 0.5", "/ 1.0"),
        "queries in the columns": (
            "return queries @",
            "return 1 * queries @ queries.T @ queries @",
        ),
        "output projection left out": (
            "self.unembedding(self.attention.out_proj(values))",
            "self.unembedding(values)",
        ),
        "future seen": ("is_causal=True, return_weights=True", "return_weights=True"),
        "layer does not add": ("x = x + change", "x = change"),
        "copies themselves marked": (
            "marked[:, :, 1:] = tokens[:, :, None] == tokens[:, None, :-1]",
            "marked[:, :, :-1] = tokens[:, :, None] == tokens[:, None, :-1]",
        ),
        "future places marked": ("return marked.tril()", "return marked"),
        "queries without a mark count": (
            "marked.any(dim=-1).expand_as(kept)",
            "torch.ones_like(kept)",
        ),
        "a piece with doubles": (
            "piece = _shuffled(batch, self.vocab_size, generator)",
            "piece = torch.randint(self.vocab_size, (batch, self.vocab_size), generator=generator)",
        ),
    },
    "_arguments of retrieval": {
        "numbers outside accepted": ("high >= size", "False"),
        "empty batch accepted": ("or not value.numel()", ""),
    },
    "_arguments of classifier": {
        "id from the end of the table": ("low < 0 or high >= size", "high >= size"),
    },
    "_arguments of bad_input": {
        "anything is a flag": ("if not isinstance(value, bool)", "if value is None"),
        "one text is a list of texts": ("str | Tensor", "Tensor"),
        "every tensor is a float tensor": ("value.dtype not in FLOATS", "value.dtype is None"),
    },
    "classifier": {
        "the library is run": (
            "spec = find_spec(package)",
            "spec = __import__(package).__spec__",
        ),
        "a sentence of two libraries twice": ("if s not in taken)", "if s)"),
        "names of libraries kept": ("if w not in _NAMES]", "if w]"),
        "not beside the wrong property": ("in (bad * first, (1 - bad) * first)", "in (first, 0)"),
        "the place gives the answer away": (
            "words[:first], words[first:]",
            "words[: first + (at == 0)], words[first + (at == 0) :]",
        ),
        "words by letters only": ("(-counts[word], word)", "word"),
        "class token behind": ("[CLASS] * class_token + row", "row + [CLASS] * class_token"),
        "words drown in the sinusoids": (
            "self.embed(ids) * self.embed.embedding_dim**0.5",
            "self.embed(ids)",
        ),
        "padding attended to": (
            "(x, mask=mask, return_weights=True)\n        return",
            "(x, return_weights=True)\n        return",
        ),
        "padding in the mean": ("real.sum(dim=1, keepdim=True)", "real.shape[1]"),
        "padding in the maximum": ("x.masked_fill(~real[..., None], -torch.inf).max", "x.max"),
        "padding in the pooling": ("x, real[:, None])[:, 0]", "x)[:, 0]"),
        "last position read": ("device=x.device) == 0)", "device=x.device) == x.shape[1] - 1)"),
        "no norm behind the blocks": ("return self.norm(x), mask", "return x, mask"),
        "sentence of padding runs": (" == PAD).all(", " < PAD).all("),
        "the model itself is changed": ("model = copy.deepcopy(model)", "pass"),
        "weight for padding": ("mask.expand_as(weights).to(", "torch.ones_like(weights).to("),
        "weights dealt out to padding": ("noise.masked_fill(blocked, 2.0)", "noise"),
    },
    "alignment": {
        "attends to the padding": ("mask = padding_mask(source, pad_id=PAD)", "mask = None"),
        "backward direction starts in the padding": (
            "packed = pack_padded_sequence(\n            self.source_embedding(source), real.sum",
            "packed = pack_padded_sequence(\n            self.source_embedding(source), "
            "(real | ~real).sum",
        ),
        "target not shifted": ("torch.cat([start, target[:, :-1]], dim=1)", "target"),
        "decoder sees later inputs": (
            "states, _ = self.decoder(self.target_embedding(inputs))",
            "states, _ = self.decoder(self.target_embedding(inputs).flip(1))",
        ),
        "decoder starts from the source": (
            "self.decoder(self.target_embedding(inputs))",
            "self.decoder(self.target_embedding(inputs), memory[:, 0][None].contiguous())",
        ),
        "values of the decoder": (
            "self.attention(states, memory, mask=mask",
            "self.attention(states, memory, memory.flip(1), mask=mask",
        ),
        "first position taken in decoding": ("written)[:, -1:]", "written)[:, :1]"),
        "ended rows go on": ("best.masked_fill(ended, PAD)", "best"),
        "never stops": ("if ended.all():", "if False:"),
        "padding in front": (
            "row + [PAD] * (longest - len(row)) for",
            "[PAD] * (longest - len(row)) + row for",
        ),
        "days of the test in training": (
            "rng.choice(days[test:], train)",
            "rng.choice(days, train)",
        ),
        "what stands between is taken for the day": (
            'if kind == "field" else " "',
            'if kind == "field" else "d"',
        ),
        "weights of the other fields": ("[c == letter for c", "[c != letter for c"),
        "unknown characters dropped": (
            "if unknown := sorted(",
            "if unknown := sorted([]) and sorted(",
        ),
    },
    "vision": {
        "reshape without moving the axes": (
            "cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)",
            "cut.reshape(batch, rows * columns, -1)",
        ),
        "patches column by column": (
            "cut.permute(0, 2, 4, 1, 3, 5)",
            "cut.permute(0, 4, 2, 1, 3, 5)",
        ),
        "channels last in a patch": (
            "cut.permute(0, 2, 4, 1, 3, 5)",
            "cut.permute(0, 2, 4, 3, 5, 1)",
        ),
        "way back without moving the axes": (
            "cut.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)",
            "cut.reshape(shape[0], channels, *image_size)",
        ),
        "patches that do not fill the image": ("shape[1] != rows * columns", "shape[1] < 1"),
        "donors and images swapped": (
            "patches.scatter(1, index, others.gather(1, index))",
            "others.scatter(1, index, patches.gather(1, index))",
        ),
        "a donor's first patches": ("others.gather(1, index))", "others)"),
        "class token last": ("(first, patches), dim=1", "(patches, first), dim=1"),
        "one position for all": ("dim=1) + self.positions", "dim=1) + self.positions[-1]"),
        "a patch is read": ("self.norm(x[:, 0])", "self.norm(x[:, 1])"),
        "tokens are not dropped": (
            "self.dropout(torch.cat((first, patches), dim=1) + self.positions)",
            "torch.cat((first, patches), dim=1) + self.positions",
        ),
        "one block for all layers": (
            "for block in self.blocks:",
            "for block in [self.blocks[0]] * 2:",
        ),
        "weights of the last layer only": ("torch.stack(weights, dim=1)", "weights[-1][:, None]"),
        "layers in the wrong order": (
            "total = (layer + identity) / 2 @ total",
            "total = total @ (layer + identity) / 2",
        ),
        "rollout without the residual": ("(layer + identity) / 2", "layer"),
        "another image size runs": ("if tuple(images.shape[1:]) != expected:", "if False:"),
    },
    "timing": {
        "disturbed samples count": ("self.noisy or not loud", "True"),
        "quiet samples dropped": ("self.noisy or not loud", "self.noisy or loud"),
        "noise never said": ("2 * sum(self.disturbed) > len(self.seconds)", "False"),
        "ratio upside down": ("timing.median / base for", "base / timing.median for"),
        "second call not compared": ("copies(name, function())", "copies(name, firsts[name][0])"),
        "always the same order": (
            "order.sample(list(functions), len(functions))",
            "list(functions)",
        ),
        "an interrupt loses everything": ("if not any(samples.values()):", "if True:"),
        "one thread, whatever is set": ("num_threads=threads", "num_threads=1"),
        "one call a sample": ("math.ceil(seconds / ", "math.ceil(0.0 * "),
        "roof of the slowest sample": ("min(timing.counted)", "max(timing.counted)"),
        "copy counted once": ("2 * copied / best", "copied / best"),
    },
    "_work of timing": {
        "outputs not compared": ("difference > tolerance * largest", "False"),
        "NaN passes": ("if any(holds(tensor).any() for tensor in found):", "if False:"),
        "shapes not compared": ("if shapes[0] != shapes[1]:", "if False:"),
        "views counted": ("or not shared", "or True"),
        "results not counted": ("in inputs + outputs)", "in inputs)"),
        "all page faults so far": ("ru_minflt - before", "ru_minflt"),
        "own work taken for others'": (" - time.process_time()", ""),
        "waiting taken for work": ("ticks = user + nice", "ticks = _waiting + user + nice"),
        "below the ridge the peak": ("np.minimum(self.peak", "np.maximum(self.peak"),
        "an addition and a product as one": (
            "2 * q * k * d, 2 * q * k * v",
            "q * k * d, q * k * v",
        ),
        "backward as forward": ("(2 * (scores + average) +", "((scores + average) +"),
        "scores free": ("(7 if backward else 4)", "(7 if backward else 2)"),
    },
    "tiling": {
        "NaN while nothing was seen": ("largest.masked_fill(largest == -math.inf, 0.0)", "largest"),
        "sums keep the old maximum": ("sums = sums * correction +", "sums = sums +"),
        "NaN for a row without keys": ("total.masked_fill(total == 0, 1.0)", "total"),
        "log-sum-exp without the maximum": ("(shift + total.log())", "total.log()"),
        "end of the diagonal unmasked": (
            "columns.stop > rows.start + 1",
            "columns.stop > rows.stop",
        ),
        "is_causal drops the mask": (
            "triangle if allowed is None else triangle & allowed",
            "triangle",
        ),
        "no block skipped": ("if mask is None or allowed.any():", "if True:"),
        "mask forgotten in the backward pass": (
            "_scores(of_rows, of_keys, allowed)",
            "_scores(of_rows, of_keys, None)",
        ),
        "gradient of the log-sum-exp lost": (" - grad_lse.unsqueeze(-1)", ""),
        "gradient of the query unscaled": ("grads[0].mul_(scale)", "pass"),
        "summed in half precision": (
            "x.float() if x.dtype in (torch.float16, torch.bfloat16)",
            "x if True",
        ),
        "autocast lowers the backward pass": ("with _no_autocast(tensors[0]):", "if True:"),
        "second derivatives of 0": (
            "        gradients = _Gradients.apply(ctx.gradients, *ctx",
            "        gradients = ctx.gradients(*ctx",
        ),
        "weights kept": (
            "ctx.save_for_backward(query, key, value, mask, output, lse)",
            "ctx.save_for_backward(query, key, value, mask, output, lse, query @ key.mT)",
        ),
        "a T4 accepted": ("capability < (8, 0)", "capability < (7, 0)"),
    },
    "_flash of tiling": {
        "own position hidden": ("column <= row", "column < row"),
        "zeros beyond the last key seen": ("seen = column < keys", "seen = column <= keys"),
        "block on the diagonal left out": ("tl.minimum(first + BLOCK_Q, keys)", "first"),
        "sums keep the old maximum": ("sums = sums * correction[:, None]", "sums = sums"),
        "log-sum-exp to base 2": ("largest * _LN_2 +", "largest +"),
        "gradient of the log-sum-exp lost": (
            "s = s - tl.load(grad_lse + at, mask=inside, other=0.0)",
            "s = s",
        ),
        "gradient of the key unscaled": ("dk * scale", "dk"),
        "queries of the first block left out": (
            "begin = first // BLOCK_Q * BLOCK_Q",
            "begin = (first // BLOCK_Q + 1) * BLOCK_Q",
        ),
        "key heads dealt out in turn": (
            "(head * GROUP + member) * length",
            "(head + member) * length",
        ),
        "inputs read as they lie": (
            "query, key, value, grad = (x.contiguous() for x in (query, key, value, grad))",
            "grad = 1 * grad",
        ),
    },
    "training": {
        "steps add up their gradients": ("optimizer.zero_grad()", "pass"),
        "no step": ("            optimizer.step()\n", ""),
        "gradients unclipped": ("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "pass"),
        "left in training mode": ("model.eval()", "pass"),
        "NaN goes on": ("not math.isfinite(losses[-1])", "losses[-1] is None"),
    },
    "devices": {
        "output still on its way": (
            "self.out_proj(_merge(output)).clone()",
            "self.out_proj(_merge(output))",
        ),
        "all heads' mask for every rank": (
            "mask.chunk(self.ranks, dim=1)[self.rank]",
            "mask.chunk(self.ranks, dim=1)[0]",
        ),
        "an all-reduce for each projection's gradient": (
            "self._heads(*self._shared(query, key, value))",
            "self._heads(query, key, value)",
        ),
        "heads that do not divide": ("if self.num_heads % self.ranks or", "if False and"),
        "every slice starts at position 0": ("first = sum(lengths[: ring.rank])", "first = 0"),
        "chunks from the front only": ("chunks[-1 - rank]", "chunks[world_size + rank]"),
        "needs of the ranks not compared": (
            "gradients=torch.is_grad_enabled() and any(x.requires_grad for x in tensors),",
            "gradients=False,",
        ),
    },
    "_ring of devices": {
        "merged without rescaling": (
            "output.mul_((lse - shift).exp().unsqueeze(-1))",
            "output.mul_(1)",
        ),
        "outputs of the steps averaged": (
            "output.addcmul_(part, (part_lse - shift).exp().unsqueeze(-1))",
            "output.add_(part).div_(2)",
        ),
        "gradients of a slice stay behind": (
            "for total, part in zip(mine, grads, strict=True):",
            "for total, part in zip(mine[:0], grads[:0], strict=True):",
        ),
        "equal slices assumed": (
            "lengths[self.rank - step - 1]",
            "lengths[self.rank]",
        ),
        "a key attends to what comes later": (
            "positions[rows, None] >= places[0].mT",
            "positions[rows, None] <= places[0].mT",
        ),
        "used slices kept": (
            "            slices = coming",
            "            self.kept = getattr(self, 'kept', []) + [slices]; slices = coming",
        ),
    },
    "_ranks of devices": {
        "the first rank blamed": (
            'error = RankError(f"rank {rank} {how}", rank)',
            'error = RankError(f"rank 0 {how}", 0)',
        ),
        "the last error taken": (
            "_, said, trace, rank = min(found)",
            "_, said, trace, rank = max(found)",
        ),
        "bytes of one tensor of a list": (
            "sum(map(_nbytes, argument))",
            "sum(map(_nbytes, argument[1:]))",
        ),
        "a rank outlives its starter": (
            "multiprocessing.parent_process().join()",
            "threading.Event().wait()",
        ),
        "ranks outlive the timeout": ("process.kill()", "process.pid"),
    },
    "plots": {
        "map transposed": ("        weights, vmin=0,", "        weights.T, vmin=0,"),
        "labels swapped": ("xticklabels=key_labels", "xticklabels=query_labels"),
        "colours of each head's own": ("name, weights.max(), numbers", "name, None, numbers"),
        "half precision unread": (".cpu().double()", ".cpu()"),
        "patches in the wrong order": ("np.kron(weights,", "np.kron(weights[::-1],"),
        "a scale for each line": ("ax.plot(x, y,", "ax.plot(x, y / np.max(y),"),
    },
    "_cache of decoding": {
        "memory not cleared": ("torch.zeros(shape, dtype", "torch.full(shape, math.nan, dtype"),
        "padding stored": (".masked_fill(~real, -1)", ""),
        "positions of all samples those of the first": (
            "self.lengths[:, None] + real.cumsum",
            "self.lengths[:1, None] + real.cumsum",
        ),
        "overflow unnoticed": ("if needed > self.capacity", "if False"),
        "gradient accepted": ("if tensor.requires_grad", "if False"),
        "old numbers left by a rewind": (
            "self.keys[:, :, length:] = self.values[:, :, length:] = 0",
            "pass",
        ),
        "rewind makes short samples longer": (
            "self.lengths.clamp(max=length)",
            "self.lengths * 0 + length",
        ),
        "values stored as keys": (
            "self.values[rows, :, slots] = value",
            "self.values[rows, :, slots] = key",
        ),
        "rolling cache overwrites before a chunk is read": (
            "        if key.shape[2] == 1:  # what",
            "        if True:  # what",
        ),
        "first tokens of a long chunk kept": (
            "(positions >= lengths[:, None] - self.capacity)",
            "(positions < self.capacity)",
        ),
        "slots read as positions": (
            "(last - (last - slots) % self.capacity).clamp(min=-1)",
            "torch.where(slots <= last, slots, -1)",
        ),
        "rolling cache goes back behind its window": ("0 < length < longest", "longest < 0"),
        "keys counted, values not": ("return 2 * math.prod", "return math.prod"),
    },
    "decoding": {
        "each new token at position 0": (
            "rotary(part, positions[:, None])",
            "rotary(part, positions[:, None] - positions[:, None, :1])",
        ),
        "causal mask at the top left": (
            "(keys <= queries)",
            "(keys <= queries - queries[..., :1, :])",
        ),
        "padding of the cache seen": ("seen = (keys >= 0) & (", "seen = ("),
        "window one position too wide": ("keys > queries - window", "keys >= queries - window"),
        "window forgotten": ("seen if window is None else", "seen if True else"),
        "key heads dealt out in turn": (
            "query.unflatten(1, (-1, group)).flatten(2, 3)",
            "query.unflatten(1, (group, -1)).transpose(1, 2).flatten(2, 3)",
        ),
        "mask of one query for its whole group": (
            ".repeat(1, 1, group, 1)",
            ".repeat_interleave(group, dim=2)",
        ),
        "scores of the padding read": (
            "last -= real.flip(1).int().argmax(dim=1)",
            "last -= 0",
        ),
        "cache not used by the next step": (
            "scores = model(ids, caches, real)",
            "scores = model(ids, model.new_caches(len(ids), 99), real)",
        ),
        "temperature upside down": (
            "(scores.double() - largest) / float(temperature)",
            "(scores.double() - largest) * float(temperature)",
        ),
        "top_k ignored": ("if top_k is not None and top_k <", "if top_k is not None and 0 >"),
        "global generator used": ("1, generator=generator)", "1)"),
        "first head in place of the mean": ("heads.mean(dim=1)", "heads[:, 0]"),
        "heads added": ("heads.mean(dim=1)", "heads.sum(dim=1)"),
        "one cache for all blocks": (
            "return [make(batch_size, *sizes, width, weight.dtype, weight.device) "
            "for _ in self.blocks]",
            "return [make(batch_size, *sizes, width, weight.dtype, weight.device)] "
            "* len(self.blocks)",
        ),
    },
}


def run_tests(folder, tests, output):
    """Run the tests in the folder, print to ``output``, and exit with 100 more than pytest does."""
    for stream in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # that for notebooks loads for two seconds
    sys.path[:] = [str(folder), *(path for path in sys.path if Path(path) not in (ROOT, TESTS))]
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--assert=plain", *tests])
    sys.exit(PASSED + code)


def own_tests(module):
    """What pytest is told to run for a module: a file, and which tests of it.

    What a validator lets through is seen where it should refuse, and what a kernel does wrong in
    the tests of the kernels: no need to wait for the others.
    """
    chosen = {"_validate": ["-m", "refusal"], "_flash": ["-k", "kernels and not compile"]}
    module, _, tested_by = module.partition(" of ")
    file = f"tests/test_{tested_by or HOME_OF_TESTS.get(module, module)}.py"
    return [file, *chosen.get(module, [])]


def plant(folder, module, right="", wrong=""):
    """Copy the library, with a change, and the tests of a module."""
    for name in ("attention_lib", "pyproject.toml", "tests/conftest.py", "tests/oracle.py"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        (folder / name).parent.mkdir(exist_ok=True)
        copy(ROOT / name, folder / name)
    tests = own_tests(module)[0]
    shutil.copyfile(ROOT / tests, folder / tests)
    path = folder / "attention_lib" / f"{module.partition(' of ')[0]}.py"
    source = path.read_text(encoding="utf-8")
    assert not right or source.count(right) == 1, f"{right!r} must stand once in {path.name}"
    path.write_text(source.replace(right, wrong) if right else source, encoding="utf-8")


def outcome(folder, module, fault=None, first=None):
    """What pytest exits with on a copy of the library with a fault, and what it prints."""
    if module.startswith("_flash") and find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    plant(folder, module, *(FAULTS[module][fault] if fault else ()))
    tests = own_tests(module)
    code = run(folder, [f"{tests[0]}::{first}"]) if first else None
    if code != FAILED:  # the recorded test let it pass, or is no longer there
        code = run(folder, tests)
    return code, (folder / "output").read_text(encoding="utf-8")


def run(folder, tests):
    """The exit status of the tests in a process of their own."""
    if processes.get_start_method() == "forkserver":
        processes.set_forkserver_preload(PRELOADED)
    process = processes.Process(target=run_tests, args=(folder, tests, folder / "output"))
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.parametrize("module", {tuple(own_tests(module)): module for module in FAULTS}.values())
def test_without_a_fault_the_tests_pass(module, tmp_path):
    code, output = outcome(tmp_path, module)
    assert code == PASSED, output


@pytest.mark.parametrize(
    ("module", "fault"), [(module, fault) for module, faults in FAULTS.items() for fault in faults]
)
def test_planted_fault_is_caught(module, fault, tmp_path):
    caught_by = json.loads(CAUGHT_BY.read_text(encoding="utf-8"))
    code, output = outcome(tmp_path, module, fault, caught_by.get(module, {}).get(fault))
    assert code == FAILED, f"the tests pass, or do not run, with {fault!r}:\n{output}"


def record():
    """Write down a test that catches each fault; needs Triton for those of the kernels."""
    before, caught_by = json.loads(CAUGHT_BY.read_text(encoding="utf-8")), {}
    for module, fault in tqdm([(m, f) for m, faults in FAULTS.items() for f in faults]):
        with tempfile.TemporaryDirectory() as folder:
            first = before.get(module, {}).get(fault)
            _, output = outcome(Path(folder), module, fault, first)
        caught = re.search(r"^FAILED [^:]+::(.+?)(?: - |$)", output, re.MULTILINE)
        if caught:
            caught_by.setdefault(module, {})[fault] = caught[1]
    CAUGHT_BY.write_text(json.dumps(caught_by, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record()
