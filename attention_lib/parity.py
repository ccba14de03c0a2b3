"""Chapter 5: the same numbers as PyTorch, and gradients that are checked."""

import copy

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck

from attention_lib import _arguments, _validate
from attention_lib.multi_head import MultiHeadAttention

_THEIRS = {"in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias"}
_THEIRS |= {"out_proj.weight", "out_proj.bias"}


def from_torch(module: nn.MultiheadAttention) -> MultiHeadAttention:
    """Our layer with the weights of PyTorch's.

    Masks have the other meaning here, True = may attend, and inputs are always batch first:
    transpose those of a module with ``batch_first=False``.

    Args:
        module: With any ``bias``, ``kdim``, ``vdim``, ``dropout``, ``batch_first``, dtype and
            device.

    Returns:
        A layer in the same mode, training or not. Weights and biases are copies that can be
        trained.

    Raises:
        TypeError: Not a :class:`torch.nn.MultiheadAttention`.
        ValueError: A module with ``add_bias_kv`` or ``add_zero_attn``, or with other parameters
            than PyTorch's, such as a pruned one.
    """
    if not isinstance(module, nn.MultiheadAttention):
        raise TypeError(
            f"module must be a torch.nn.MultiheadAttention; got {_validate.class_of(module)}"
        )
    if module.bias_k is not None or module.add_zero_attn:
        raise ValueError(
            "add_bias_kv and add_zero_attn add a key that no input holds, which this layer does "
            f"not do; got add_bias_kv={module.bias_k is not None}, "
            f"add_zero_attn={module.add_zero_attn}"
        )
    if others := {name for name, _ in module.named_parameters()} - _THEIRS:
        raise ValueError(
            f"module must have the parameters that PyTorch gives it; got {sorted(others)} as well"
        )
    layer = MultiHeadAttention(
        module.embed_dim, module.num_heads, module.kdim, module.vdim,
        bias=module.in_proj_bias is not None, dropout=module.dropout,
    )  # fmt: skip
    layer.to(module.out_proj.weight).load_state_dict(_by_our_names(module))
    return layer.train(module.training)


def to_torch(module: MultiHeadAttention, batch_first: bool = True) -> nn.MultiheadAttention:
    """PyTorch's layer with the weights of ours: undoes :func:`from_torch`.

    Args:
        module: Any layer whose heads have keys and values of their own.
        batch_first: The layout of the inputs of the new module.

    Returns:
        A module in the same mode, training or not. Weights and biases are copies that can be
        trained.

    Raises:
        TypeError: Not a :class:`~attention_lib.multi_head.MultiHeadAttention`, or a subclass,
            which may attend in another way; a ``batch_first`` that is not bool.
        ValueError: Grouped heads (``num_kv_heads``), which PyTorch's module cannot express, or a
            projection that is more than a :class:`torch.nn.Linear`.
    """
    _validate.plain_layer("module", module, MultiHeadAttention)
    if module.num_kv_heads != module.num_heads:
        raise ValueError(
            "torch.nn.MultiheadAttention has a key/value head for each query head; "
            f"got num_heads = {module.num_heads}, num_kv_heads = {module.num_kv_heads}"
        )
    _arguments.flags(batch_first=batch_first)
    weight = module.out_proj.weight
    theirs = nn.MultiheadAttention(
        module.embed_dim, module.num_heads, module.dropout, module.q_proj.bias is not None,
        kdim=module.kdim, vdim=module.vdim, batch_first=batch_first,
        device=weight.device, dtype=weight.dtype,
    )  # fmt: skip
    with torch.no_grad():
        for name, view in _by_our_names(theirs).items():
            view.copy_(module.get_parameter(name))
    return theirs.train(module.training)


def check_gradients(function, *inputs, second: bool = True, seed: int = 0, **options):
    """The size of every gradient, after a comparison of each with finite differences.

    A copy of ``function`` runs in float64 and, if it is a module, in evaluation mode: float32 is
    too coarse for finite differences, and dropout draws other numbers in every call. The outputs
    are summed with random factors; a plain sum would not see errors that cancel. Each floating
    input and each parameter is then checked alone by ``torch.autograd.gradcheck``, and so is the
    gradient itself, along a random direction: that names what is wrong. Last,
    ``torch.autograd.gradgradcheck`` takes all of them together.

    The bias of the keys in attention has the gradient 0. It adds the same number to all scores of
    a row, and the softmax ignores that. So 0 against 0 is right there, and suspicious elsewhere.

    Args:
        function: A module, or a function of tensors, that returns a tensor or several. Keep it
            smooth and small: it runs twice for each number in the inputs and parameters.
        inputs: Its positional arguments. Those that are not floating tensors stay as they are.
        second: Whether to check second derivatives too. Fused kernels have none.
        seed: For the random factors.
        options: Its named arguments, treated as ``inputs`` are.

    Returns:
        The largest absolute entry of the gradient of each input and parameter, by name. A named
        argument called as a parameter is ``"input name"``.

    Raises:
        AssertionError: Gradients that are wrong, each with its name, the worst entry, and both
            numbers.
        TypeError: A function that cannot be called, a seed that is not an integer.
        ValueError: Nothing to differentiate, a function that gives two results for one input, or
            second derivatives that do not exist.

    Example:
        >>> list(check_gradients(nn.Linear(2, 3), torch.ones(4, 2)))
        ['input 0', 'weight', 'bias']
    """
    _arguments.function(function=function)
    _arguments.flags(second=second)
    _arguments.counts(seed=seed)
    run, tensors = _as_function_of_tensors(function, inputs, options)
    rng = torch.Generator().manual_seed(seed)
    outputs = run(tensors)
    try:
        torch.testing.assert_close(run(tensors), outputs, rtol=0, atol=0, equal_nan=True)
    except AssertionError as error:
        message = "the function gives two results for one input; switch dropout off"
        raise ValueError(message) from error
    factors = [_random_like(output, rng) for output in outputs]
    directions = [_random_like(tensor, rng) for tensor in tensors.values()]

    def loss(values):
        return _dot(run(values), factors)

    def slope(values):
        return _dot(_gradients(loss, values, create_graph=True), directions)

    if not (tensors and outputs and loss(tensors).requires_grad):
        raise ValueError("no floating input or parameter reaches an output through autograd")
    _compare("gradient", loss, tensors)
    if second:
        try:
            _compare("second derivative", slope, tensors)
            together = tuple(tensors.values())
            one = torch.ones_like(loss(tensors), requires_grad=True)  # or it would be drawn
            gradgradcheck(
                lambda *x: loss(dict(zip(tensors, x, strict=True))), together, one, fast_mode=True
            )
        except GradcheckError as error:
            raise AssertionError(f"wrong second derivative: {error}") from error
        except RuntimeError as error:
            raise ValueError(f"no second derivatives, pass second=False: {error}") from error
    sizes = zip(tensors, _gradients(loss, tensors), strict=True)
    return {name: g.abs().max().item() if g.numel() else 0.0 for name, g in sizes}


def _by_our_names(module):
    """The parameters of PyTorch's module under our names: views, to be read or filled."""
    weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    if module.in_proj_weight is not None:  # packed where kdim = vdim = embed_dim
        weights = module.in_proj_weight.chunk(3)
    named = dict(zip(("q_proj.weight", "k_proj.weight", "v_proj.weight"), weights, strict=True))
    if module.in_proj_bias is not None:  # packed in any case
        biases = module.in_proj_bias.chunk(3)
        named |= zip(("q_proj.bias", "k_proj.bias", "v_proj.bias"), biases, strict=True)
    return named | {f"out_proj.{name}": p for name, p in module.out_proj.named_parameters()}


def _as_function_of_tensors(function, inputs, options):
    """A function of named tensors that gives a list of outputs, and the tensors, in float64."""
    parameters = {}
    if isinstance(function, nn.Module):
        function = copy.deepcopy(function).double().eval()
        parameters = dict(function.named_parameters())
    names = [f"input {name}" if name in parameters else name for name in options]
    given = {f"input {i}": x for i, x in enumerate(inputs)}
    given |= zip(names, options.values(), strict=True)
    tensors = {name: x for name, x in given.items() if _is_floating(x)}
    # copies: gradcheck moves the numbers of one tensor at a time, and two inputs may be one tensor
    tensors = {
        name: x.detach().to(torch.float64, copy=True).requires_grad_()
        for name, x in (tensors | parameters).items()
    }

    def run(values):
        arguments = {name: values.get(name, x) for name, x in given.items()}
        named = {option: arguments.pop(name) for option, name in zip(options, names, strict=True)}
        positional = tuple(arguments.values())
        if parameters:
            state = {name: values[name] for name in parameters}
            result = torch.func.functional_call(function, state, positional, named)
        else:
            result = function(*positional, **named)
        result = result if isinstance(result, tuple | list) else (result,)
        return [x for x in result if _is_floating(x)]

    return run, tensors


def _is_floating(x):
    return isinstance(x, Tensor) and x.is_floating_point()


def _random_like(tensor, rng):
    drawn = torch.randn(tensor.shape, generator=rng, dtype=torch.float64)
    return drawn.to(tensor.device)


def _dot(tensors, factors):
    return sum((x * factor).sum() for x, factor in zip(tensors, factors, strict=True))


def _gradients(scalar, values, create_graph=False):
    tensors, result = list(values.values()), scalar(values)
    if not result.requires_grad:  # autograd takes it for a constant
        return [torch.zeros_like(x) for x in tensors]
    return torch.autograd.grad(result, tensors, create_graph=create_graph, materialize_grads=True)


def _compare(what, scalar, tensors):
    """Check the derivative of ``scalar`` by each tensor, and name all that are wrong."""
    wrong = []
    for name, tensor in tensors.items():

        def alone(x, name=name):
            return scalar(tensors | {name: x})

        try:
            gradcheck(alone, (tensor,), eps=1e-6, atol=1e-6, rtol=1e-5)
        except GradcheckError:
            wrong.append(_worst(name, alone, tensor))
    if wrong:
        raise AssertionError(f"wrong {what}:\n  " + "\n  ".join(wrong))


def _worst(name, function, tensor, step=1e-6):
    """Where backward and finite differences differ most, in words."""
    analytic = _gradients(lambda values: function(values[name]), {name: tensor})[0]
    numeric = torch.empty_like(tensor)
    for index in np.ndindex(*tensor.shape):
        left, right = tensor.detach().clone(), tensor.detach().clone()
        left[index] -= step
        right[index] += step
        slope = (function(right.requires_grad_()) - function(left.requires_grad_())) / (2 * step)
        numeric[index] = slope.detach()
    error = (analytic - numeric).abs()  # argmax takes NaN for the largest
    index = tuple(int(i) for i in np.unravel_index(int(error.argmax()), tensor.shape))
    return (
        f"{name}{list(index)}: backward gives {analytic[index].item():.6g}, "
        f"finite differences give {numeric[index].item():.6g}"
    )
