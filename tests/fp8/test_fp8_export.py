"""FP8 layers and calls in exported programs: any number of rows, and nothing for a backward."""

from __future__ import annotations

import pytest
import torch

import fusedops
from fusedops import fp8

RECIPES = {
    "block": fp8.Recipe(when="always"),
    "block, 1x128": fp8.Recipe(weight_gradient="block", when="always"),
    "row": fp8.Recipe(scaling="row", when="always"),
    "tensor": fp8.Recipe(scaling="tensor", when="always"),
}


class Normed(torch.nn.Module):
    """A norm of x and a residual that writes what a gated MLP's products read."""

    def __init__(self, recipe):
        super().__init__()
        mlp = fusedops.nn.GatedMLP(136, 200, recipe=recipe)
        self.block = fusedops.nn.PreNorm(fusedops.nn.LayerNorm(136), mlp)

    def forward(self, x):
        return self.block(x, residual=x.flip(0))


LAYERS = {
    "linear": lambda recipe: fusedops.nn.Linear(136, 72, recipe=recipe),
    "gelu": lambda recipe: fusedops.nn.Linear(136, 128, activation="gelu", recipe=recipe),
    "mlp": lambda recipe: fusedops.nn.MLP(136, 256, recipe=recipe),
    "gated": lambda recipe: fusedops.nn.GatedMLP(136, 256, recipe=recipe),
    "normed": Normed,
}


def exported(model, x, strict=False, **options):
    rows = torch.export.Dim("rows")
    return torch.export.export(model, (x,), dynamic_shapes=({0: rows},), strict=strict, **options)


def assert_same(program, model, *inputs):
    leaves = torch.utils._pytree.tree_leaves
    for x in inputs:
        with torch.no_grad():
            wanted = model(x)
        for got, want in zip(leaves(program.module()(x)), leaves(wanted), strict=True):
            assert got.dtype is want.dtype
            assert torch.equal(got.float(), want.float())


def written_transposed(program):
    """How many of its passes that quantise write a transpose."""
    columns = {"fp8_quantize": 7, "_fp8_norm": 8, "_fp8_quantize_pair": 3}
    calls = [
        (node.args, columns[name])
        for module in program.graph_module.modules()
        for node in getattr(module, "graph", torch.fx.Graph()).nodes
        for name in columns
        if str(node.target) == f"fusedops.{name}.default"
    ]
    assert calls
    return sum(bool(args[at]) for args, at in calls)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "non_strict"])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_layers_keep_rows_of_any_number(device, recipe, kind, grad, strict):
    torch.manual_seed(0)
    model = LAYERS[kind](RECIPES[recipe]).to(device, torch.bfloat16)
    x = torch.randn(300, 136, device=device, dtype=torch.bfloat16)
    with torch.set_grad_enabled(grad):
        program = exported(model, x[:9], strict)
    assert_same(program, model, x, x[:2], x[:7])
    assert written_transposed(program) == 0
    assert_same(program.run_decompositions(), model, x)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "non_strict"])
def test_two_dimensions_of_rows(strict):
    layer = fusedops.nn.MLP(64, 128, recipe=RECIPES["block"])
    x = torch.randn(5, 6, 64)
    dims = torch.export.Dim("batch"), torch.export.Dim("tokens")
    shapes = ({0: dims[0], 1: dims[1]},)
    program = torch.export.export(
        layer, (x[:3, :4].contiguous(),), dynamic_shapes=shapes, strict=strict
    )
    assert_same(program, layer, x, x[:2, :3].contiguous())


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "non_strict"])
def test_auto_decides_by_the_rows_of_the_example(monkeypatch, strict):
    """As on a GPU that has FP8."""
    monkeypatch.setattr(fp8.decide, "has_fp8", lambda device: True)
    layer = fusedops.nn.Linear(2048, 2048, bias=False, recipe=fp8.Recipe())
    x = torch.randn(8192, 2048)
    for rows, in_fp8 in ((16, False), (8192, True)):
        with torch.no_grad():
            program = exported(layer, x[:rows], strict)
            y = program.module()(x[:40])
        targets = [str(node.target) for node in program.graph.nodes]
        assert any("_fp8_matmul" in target for target in targets) == in_fp8
        wanted = x[:40].double() @ layer.weight.detach().double().t()
        assert (float((y - wanted).norm() / wanted.norm()) > 0.01) == in_fp8


class Calls(torch.nn.Module):
    """The public calls for an inference, one after the other."""

    def __init__(self):
        super().__init__()
        w8, scale, *_ = fp8.quantize(torch.randn(72, 136), "tile")
        self.register_buffer("w8", w8)
        self.register_buffer("scale", scale)

    def forward(self, x):
        q, scale, *_ = fp8.rms_norm(x)
        first = fp8.linear(q, self.w8, scale, self.scale, activation="silu")
        q, scale, *_ = fp8.quantize(x)
        return first, fp8.linear(q, self.w8, scale, self.scale)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "non_strict"])
def test_calls_keep_rows_of_any_number(device, strict):
    torch.manual_seed(0)
    model = Calls().to(device)
    x = torch.randn(300, 136, device=device, dtype=torch.bfloat16)
    assert_same(exported(model, x[:9], strict), model, x, x[:2], x[:7])


@pytest.mark.parametrize("transposed", [True, False])
def test_a_saved_program_runs(tmp_path, transposed):
    """With a static number of rows transposes may be written, too."""

    class Model(torch.nn.Module):
        def forward(self, x):
            return tuple(t for t in fp8.quantize(x, transposed=transposed) if t is not None)

    x = torch.randn(40, 136)
    torch.export.save(torch.export.export(Model(), (x,)), tmp_path / "model.pt2")
    assert_same(torch.export.load(tmp_path / "model.pt2"), Model(), x)
