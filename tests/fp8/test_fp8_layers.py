"""Layers in FP8: values against the quantised mathematics in float64, and torch's machinery."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fusedops
from fusedops import fp8, reference
from util import ACTIVATIONS, HALVES, Calls, calls_of, make, name

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
RECIPES = [
    fp8.Recipe(when="always"),
    fp8.Recipe(weight_gradient="block", when="always"),
    fp8.Recipe(scaling="row", when="always"),
    fp8.Recipe(scaling="tensor", backward="e5m2", when="always"),
    fp8.Recipe(power_of_two_scales=True, when="always"),
]
BLOCK = RECIPES[0]
M, N, K = 150, 136, 200  # no multiples of a block, two of them along each

pytestmark = pytest.mark.filterwarnings("ignore:fusedops.fp8")


def grid(x, scaling, dtype, power_of_two=False):
    """x in float64 as its FP8 form has it."""
    q, scale = reference.fp8_quantize(x.float(), scaling, dtype, power_of_two)
    return reference.fp8_dequantize(q.double(), scale.double())


def relative(a, b):
    return ((a.double() - b).norm() / b.norm()).item()


def scalings(recipe):
    """(inputs and gradients, weights, transposed inputs)."""
    if recipe.scaling != "block":
        return (recipe.scaling,) * 3
    return "block", "tile", recipe.weight_gradient


def quantized_linear(x, weight, bias, dy, recipe):
    """y, dx, dweight, dbias of a linear layer by its definition."""
    forward, backward = ({"e4m3": E4M3, "e5m2": E5M2}[f] for f in (recipe.forward, recipe.backward))
    rows, of_weight, of_inputs = scalings(recipe)
    p = recipe.power_of_two_scales
    w_t = grid(weight.t(), of_weight, forward, p)
    return (
        grid(x, rows, forward, p) @ grid(weight, of_weight, forward, p).t() + bias.double(),
        grid(dy, rows, backward, p) @ w_t.t(),
        grid(dy.t(), rows, backward, p) @ grid(x.t(), of_inputs, forward, p).t(),
        dy.double().sum(0),
    )


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=name)
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_linear_is_the_quantised_mathematics(device, recipe, dtype):
    layer = fusedops.nn.Linear(K, N, device=device, dtype=dtype, recipe=recipe)
    x = make(M, K, dtype=dtype, device=device).requires_grad_()
    dy = make(M, N, dtype=dtype, device=device, seed=1)
    y = layer(x)
    got = (y, *torch.autograd.grad(y, (x, layer.weight, layer.bias), dy))
    exact = quantized_linear(x.detach(), layer.weight.detach(), layer.bias.detach(), dy, recipe)
    for a, b in zip(got, exact, strict=True):
        assert a.dtype is dtype
        # NOTE: Hopper keeps 14 bits of a sum of 128 products: 1e-4.
        assert relative(a, b) <= 0.4 * torch.finfo(dtype).eps + 3e-4 * (device == "cuda") + 1e-6


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_a_linear_layer(device, activation):
    """The gradient is that of the activation at the quantised product."""
    layer = fusedops.nn.Linear(K, N, device=device, activation=activation, recipe=BLOCK)
    x = make(2, M // 2, K, dtype=torch.float32, device=device).requires_grad_()
    dy = make(M, N, dtype=torch.float32, device=device, seed=1)
    y = layer(x)
    dx, dw, db = torch.autograd.grad(y, (x, layer.weight, layer.bias), dy.view_as(y))
    weight, bias = layer.weight.detach(), layer.bias.detach()
    z, *_ = quantized_linear(x.detach().view(M, K), weight, bias, dy, BLOCK)
    assert relative(y.view(M, N), reference.activate(z, activation)) < 1e-3
    dz = (dy * reference.activate_grad(z, activation)).float()
    _, *exact = quantized_linear(x.detach().view(M, K), weight, bias, dz, BLOCK)
    for a, b in zip((dx.view(M, K), dw, db), exact, strict=True):
        assert relative(a, b) < 6e-3  # a z beside a kink may fall on its other side


@pytest.mark.parametrize("activation", ["gelu", "relu", "sigmoid", None])
@pytest.mark.parametrize("recompute", [False, True])
def test_mlp_and_gated_mlp_are_their_layers(device, activation, recompute):
    """The block's products are those of FP8 layers with the activation between them."""
    layers = [
        fusedops.nn.MLP(K, N, activation=activation, recompute=recompute),
        fusedops.nn.GatedMLP(K, N, activation=activation, bias=True, recompute=recompute),
        fusedops.nn.GatedMLP(
            K, N, activation=activation, bias=True, packed=True, recompute=recompute
        ),
    ]
    for block in layers:
        block.to(device).recipe = BLOCK
        x = make(2, M // 2, K, dtype=torch.float32, device=device).requires_grad_()
        dy = make(2, M // 2, K, dtype=torch.float32, device=device, seed=1)
        inputs = (x, *block.parameters())
        y = block(x, x)
        got = (y, *torch.autograd.grad(y, inputs, dy))
        apart = copy.deepcopy(block)
        for layer in apart.children():
            layer.register_forward_hook(lambda *_: None)  # so that they run one by one
        apart.recipe = None
        inputs = (x, *apart.parameters())
        with fp8.autocast(BLOCK):
            with Calls() as calls:
                y = by_layers(apart, x)
            assert "fp8_quantize" in calls.ours
            expected = (y, *torch.autograd.grad(y, inputs, dy))
        for a, b in zip(got, expected, strict=True):
            assert relative(a, b.double()) < 0.02  # bytes that round the other way


def by_layers(block, x):
    """The block by fusedops.linear of each of its layers."""
    act = torch.ops.fusedops.scale_bias_act
    linear = fusedops.linear
    code = fusedops._core.activation.CODES[block.activation]
    if isinstance(block, fusedops.nn.MLP):
        h = linear(x, block.fc1.weight, block.fc1.bias, block.activation)
        return linear(h, block.fc2.weight, block.fc2.bias) + x
    if block.packed:
        gate, up = linear(x, block.gate_up_proj.weight, block.gate_up_proj.bias).chunk(2, -1)
    else:
        gate, up = (linear(x, p.weight, p.bias) for p in (block.gate_proj, block.up_proj))
    gated = fusedops._autograd.compose.activate(gate, code) * up
    assert act is not None
    return linear(gated, block.down_proj.weight, block.down_proj.bias) + x


def test_wide_inputs_are_as_exact_as_their_format(device):
    """Against the product itself: the figures of docs/fp8.md."""
    x = make(256, 512, dtype=torch.float32, device=device)
    w = make(256, 512, dtype=torch.float32, device=device, seed=1)
    exact = x.double() @ w.double().t()
    for recipe in RECIPES:
        assert 0.03 < relative(fusedops.linear(x, w, recipe=recipe), exact) < 0.045


@pytest.mark.parametrize("needs", list(itertools.product([False, True], repeat=3)), ids=str)
def test_only_what_is_wanted_is_computed(device, needs):
    x, w, b = (
        make(*s, dtype=torch.float32, device=device).requires_grad_(need)
        for s, need in zip([(M, K), (N, K), (N,)], needs, strict=True)
    )
    y = fusedops.linear(x, w, b, "gelu", recipe=BLOCK)
    assert y.requires_grad == any(needs)
    if not any(needs):
        return
    with Calls() as calls:
        y.backward(torch.ones_like(y))
    assert calls.ours.count("_fp8_matmul") == needs[0] + needs[1]
    assert calls.ours.count("fp8_quantize") == 1
    assert [t.grad is not None for t in (x, w, b)] == list(needs)


def test_what_is_saved_is_the_transposed_input_in_fp8():
    x = torch.randn(256, 128, requires_grad=True)
    layer = fusedops.nn.Linear(128, 128, recipe=BLOCK)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        layer(x)
    assert all(t.dtype is E4M3 or t.numel() <= 4 for t in saved)
    assert sum(t.nbytes for t in saved) == 256 * 128 + 128 * 128 + 4 * (2 + 1)


# ---- the cache of weights ----


def quantised_weights(layer, x):
    """How many quantisations a call makes beside that of its input."""
    return calls_of(layer, x).ours.count("fp8_quantize") - 1


@pytest.mark.parametrize("fused", [False, True])
def test_a_weight_is_quantised_once_a_step(device, fused):
    layer = fusedops.nn.Linear(64, 64, device=device, recipe=BLOCK)
    x = torch.randn(8, 64, device=device)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=fused)
    for _ in range(2):
        fp8.invalidate(layer)
        assert quantised_weights(layer, x) == 1
        assert quantised_weights(layer, x) == 0
        before = layer(x)
        layer(x).sum().backward()
        assert quantised_weights(layer, x) == 0  # both orientations are there now
        version = layer.weight._version
        optimizer.step()
        if fused and device == "cpu":
            assert layer.weight._version == version  # the trap
        assert not torch.equal(layer(x), before)


def test_what_changes_a_weight_makes_it_anew():
    layer = fusedops.nn.Linear(64, 64, recipe=BLOCK)
    x = torch.randn(8, 64)
    changes = [
        lambda: layer.weight.mul_(2),
        lambda: setattr(layer.weight, "data", torch.randn(64, 64)),
        lambda: layer.load_state_dict({k: v + 1 for k, v in layer.state_dict().items()}),
        lambda: layer.double().float(),
        lambda: (layer.weight.data.mul_(2), fp8.invalidate(layer)),
        lambda: (layer.weight.data.mul_(2), fp8.invalidate(layer.weight)),
        lambda: (layer.weight.data.mul_(2), fp8.invalidate()),
        lambda: setattr(layer, "recipe", RECIPES[4]),
    ]
    for change in changes:
        with torch.no_grad():
            layer(x)
            change()
        assert quantised_weights(layer, x) == 1
        expected = fusedops.linear(
            x, layer.weight.detach().clone(), layer.bias, recipe=layer.recipe
        )
        assert torch.equal(layer(x), expected)


def test_the_cache_holds_no_weight_alive():
    from fusedops.fp8.weights import _cache

    layer = fusedops.nn.Linear(64, 64, recipe=BLOCK)
    layer(torch.randn(8, 64))
    assert layer.weight in _cache
    count = len(_cache)
    del layer
    assert len(_cache) < count


# ---- modules, contexts, state ----


def test_state_dicts_pickles_and_copies():
    plain = nn.Linear(64, 32)
    layer = fusedops.nn.Linear(64, 32, recipe=BLOCK)
    assert layer.state_dict().keys() == plain.state_dict().keys()
    layer.load_state_dict(plain.state_dict())
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.recipe == BLOCK
        x = torch.randn(4, 64)
        assert torch.equal(other(x), layer(x))
    assert "recipe=Recipe(scaling='block'" in repr(layer)
    assert "recipe=Recipe" in repr(fusedops.nn.MLP(4, 4, recipe=BLOCK))
    old = fusedops.nn.Linear(64, 32)
    del old.__dict__["recipe"]
    assert old.recipe is None


def test_autocast_of_a_region_and_a_layers_own_recipe():
    x, layer = torch.randn(8, 64), fusedops.nn.Linear(64, 64)
    plain = layer(x)
    with fp8.autocast(BLOCK):
        inside = layer(x)
        with fp8.autocast(None):
            assert torch.equal(layer(x), plain)
        assert torch.equal(layer(x), inside)
        layer.recipe = RECIPES[4]
        own = layer(x)
        layer.recipe = None
    assert torch.equal(layer(x), plain)
    assert not torch.equal(inside, plain)
    assert not torch.equal(own, inside)
    with pytest.raises(ZeroDivisionError), fp8.autocast(BLOCK):
        raise ZeroDivisionError
    assert torch.equal(layer(x), plain)


def test_calls_that_fp8_is_not_for_run_as_without():
    layer = fusedops.nn.Linear(64, 32, recipe=BLOCK)
    double = copy.deepcopy(layer).double()
    x = torch.randn(4, 64)
    assert calls_of(double, x.double()).ours == ["linear"]
    assert calls_of(layer, x[:0]).ours == ["linear"]
    batched = torch.func.vmap(layer)(x.view(2, 2, 64))
    torch.testing.assert_close(
        batched, nn.functional.linear(x, layer.weight, layer.bias).view(2, 2, 32)
    )
    with pytest.raises(RuntimeError, match="linear: weight must have shape"):
        layer(torch.randn(4, 65))


def step(model, x, labels):
    loss = nn.functional.cross_entropy(model(x).float(), labels)
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters()]


def model_of(recipe, device="cpu", **how):
    torch.manual_seed(0)
    return nn.Sequential(
        fusedops.nn.Linear(64, 96, activation="gelu", recipe=recipe, **how),
        fusedops.nn.MLP(96, 160, recipe=recipe, **how),
        fusedops.nn.GatedMLP(96, 160, recipe=recipe, **how),
        fusedops.nn.Linear(96, 10, recipe=recipe, **how),
    ).to(device)


def test_torch_autocast_with_fp32_masters(device):
    model = model_of(BLOCK, device)
    x = torch.randn(40, 64, device=device)
    labels = torch.arange(40, device=device) % 10
    with torch.autocast(device, torch.bfloat16):
        assert model(x).dtype is torch.bfloat16
        loss, grads = step(model, x, labels)
    plain = model_of(None, device)
    expected, exact = step(plain, x, labels)
    assert abs(loss - expected) < 0.02
    assert all(g.dtype is torch.float32 for g in grads)
    assert all(relative(a, b.double()) < 0.25 for a, b in zip(grads, exact, strict=True))


def test_a_loss_scaler_sees_infinite_gradients():
    layer = fusedops.nn.Linear(64, 64, recipe=BLOCK)
    x = torch.randn(8, 64)
    y = layer(x)
    grad = torch.zeros_like(y)
    grad[3, 5] = float("inf")
    dw, db = torch.autograd.grad(y, (layer.weight, layer.bias), grad)
    assert not dw.isfinite().all()
    assert not db.isfinite().all()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    before = layer.weight.detach().clone()
    for bad in (True, False):
        optimizer.zero_grad()
        scaler.scale(layer(x).sum() * (float("inf") if bad else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(layer.weight, before) == bad


@pytest.mark.parametrize("own", [False, True])
def test_activation_checkpointing(own):
    model = model_of(BLOCK if own else None)
    x, labels = torch.randn(40, 64), torch.arange(40) % 10
    outer, contexts = fp8.autocast(None if own else BLOCK), {"context_fn": fp8.checkpoint_contexts}
    with outer:
        loss, grads = step(model, x, labels)
    again = copy.deepcopy(model)
    again.zero_grad()

    def kept_nothing(x):
        return checkpoint(again, x, use_reentrant=False, **({} if own else contexts))

    with outer:
        y = kept_nothing(x)
    loss2 = nn.functional.cross_entropy(y.float(), labels)
    loss2.backward()  # outside of the region
    assert torch.equal(loss, loss2.detach())
    assert all(torch.equal(a, p.grad) for a, p in zip(grads, again.parameters(), strict=True))


def test_main_grad_holds_the_gradient_in_fp32():
    layer, twin = (fusedops.nn.Linear(64, 32, dtype=torch.bfloat16, recipe=BLOCK) for _ in range(2))
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(16, 64, dtype=torch.bfloat16)
    layer.weight.main_grad = torch.ones(32, 64)
    layer(x).sum().backward()
    twin(x).sum().backward()
    assert layer.weight.grad is None
    assert relative(layer.weight.main_grad - 1, twin.weight.grad.double()) < 0.01


def test_nothing_is_written_for_backward_without_gradients():
    """Parameters require them: the activation is the product's, the input has one copy."""
    layer, x = fusedops.nn.Linear(64, 32, activation="gelu", recipe=BLOCK), torch.randn(8, 64)
    calls = calls_of(layer, x)
    assert [op for op in calls.ours if op != "fp8_quantize"] == ["_fp8_matmul"]
    with torch.no_grad():
        q, scale, *_ = fp8.quantize(x)
        w8, w_scale, *_ = fp8.quantize(layer.weight, "tile")
        wanted = fp8.linear(q, w8, scale, w_scale, layer.bias, "gelu", torch.float32)
        assert torch.equal(layer(x), wanted)


@pytest.mark.parametrize("recipe", [fp8.Recipe(), *RECIPES[1:3]], ids=str)
def test_compiles_whole(recipe):
    model = model_of(recipe)
    x, labels = torch.randn(40, 64), torch.arange(40) % 10
    loss, grads = step(model, x, labels)
    again = copy.deepcopy(model)
    again.zero_grad()
    compiled = torch.compile(again, fullgraph=True, backend="aot_eager")
    loss2, grads2 = step(compiled, x, labels)
    assert torch.equal(loss, loss2)
    for a, b in zip(grads, grads2, strict=True):
        torch.testing.assert_close(a, b)


def test_compiles_whole_where_auto_decides_by_a_dynamic_size(monkeypatch):
    """As on a GPU that has FP8; what it decides guards the graph."""
    monkeypatch.setattr(fp8.decide, "has_fp8", lambda device: True)
    layer = fusedops.nn.Linear(2048, 2048, bias=False, recipe=fp8.Recipe())
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    weight = layer.weight.detach()
    for rows, in_fp8 in ((16, False), (8192, True)):
        x = torch.randn(rows, 2048)
        with torch.no_grad():
            y = compiled(x)
        error = relative(y[:16], x[:16].double() @ weight.double().t())
        assert (error > 0.01) == in_fp8
        with torch.no_grad():
            assert ("_fp8_matmul" in calls_of(layer, x).ours) == in_fp8


def test_compiles_whole_inside_a_region():
    layer, x = fusedops.nn.Linear(64, 32), torch.randn(8, 64)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    plain = compiled(x)
    with fp8.autocast(BLOCK):
        assert torch.equal(compiled(x), layer(x))
    assert torch.equal(compiled(x), plain)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def inner(x):
        with fp8.autocast(BLOCK):
            return layer(x)

    with fp8.autocast(BLOCK):
        assert torch.equal(inner(x), layer(x))


def test_a_second_derivative_says_that_there_is_none():
    x = torch.randn(8, 64, requires_grad=True)
    for block in model_of(BLOCK)[:1]:
        y = block(x)
        with pytest.raises(RuntimeError, match="linear: an FP8 layer has no second derivatives"):
            torch.autograd.grad(y.sum(), x, create_graph=True)


def test_emulation_warns_once():
    from fusedops.fp8 import inference

    inference._warned.discard("cpu")
    layer, x = fusedops.nn.Linear(64, 64, recipe=BLOCK), torch.randn(8, 64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layer(x)
        layer(x)
    assert [str(w.message).split(":")[0] for w in caught] == ["fusedops.fp8"]


def test_errors_of_recipes():
    with pytest.raises(ValueError, match="Recipe: scaling must be one of 'block', 'row', 'tensor'"):
        fp8.Recipe(scaling="tile")
    with pytest.raises(ValueError, match="Recipe: forward must be one of 'e4m3'; got 'e5m2'"):
        fp8.Recipe(forward="e5m2")
    with pytest.raises(TypeError, match="power_of_two_scales must be a bool; got int"):
        fp8.Recipe(power_of_two_scales=1)
    x = torch.ones(4, 4)
    for call in (
        lambda: fusedops.linear(x, x, recipe="block"),
        lambda: fusedops.mlp(x, x, None, x, None, None, recipe="block"),
        lambda: fusedops.gated_mlp(x, x, x, x, recipe="block"),
        lambda: fusedops.nn.Linear(4, 4, recipe="block"),
        lambda: fusedops.nn.MLP(4, 4, recipe="block"),
        lambda: fusedops.nn.GatedMLP(4, 4, recipe="block"),
        lambda: fp8.autocast("block"),
    ):
        with pytest.raises(TypeError, match=r"recipe must be a .*Recipe.* or None; got str"):
            call()
