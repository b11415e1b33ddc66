"""The graph pass of torch.compile: what pays, options, caches, the report."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fusedops
from integration.test_inductor import (
    K,
    assert_close,
    compiled,
    inputs,
    make,
    step,
)


def test_nothing_pays_on_a_cpu():
    model, x = make("gelu", "cpu"), inputs("cpu")
    ours = fusedops.inductor()
    got = step(compiled(model, ours), model, x)
    assert ours.report.replaced == []
    assert "CPU" in ours.report.left[0].reason
    assert_close(got, step(model, model, x), 1e-5)


@dataclass
class Product:
    """As much of a product as the decision reads."""

    node: SimpleNamespace


def times(kind, sizes, activation="gelu", dtype=torch.bfloat16, model=False, **facts):
    """(ours, theirs) in us on an H200, as the decision models them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from fusedops._inductor.decide import _Model
    from fusedops._inductor.sites import Site

    with FakeTensorMode():
        fake = torch.empty(sizes[0], sizes[1], dtype=dtype, device="cuda")
    site = Site(
        kind, activation, sizes, [Product(SimpleNamespace(meta={"val": fake}))], facts=facts
    )
    return _Model(site, list(sizes)) if model else _Model(site, list(sizes)).times()


PAYS = [
    ("mlp", (8192, 4096, 1024, 1024), {"training": True, "bias": True}),
    ("mlp", (8192, 4096, 1024, 1024), {"residual": True}),
    ("gated_mlp", (8192, 5632, 2048, 2048), {"training": True}),
    ("gated_mlp", (8192, 5632, 2048, 2048), {"packed": True}),
    ("linear", (8192, 4096, 1024), {"training": True}),
    ("weight_grad", (8192, 4096, 1024), {}),
    ("linear_cross_entropy", (16384, 50257, 768), {"training": True, "dx": True, "dw": True}),
    ("linear_cross_entropy", (8192, 32000, 4096), {}),
    ("product", (4096, 4096, 4096), {"a": False, "b": True, "dtype": torch.float32}),
]


@pytest.mark.skipif(torch.cuda.is_available(), reason="an H200 is assumed where no GPU is")
@pytest.mark.parametrize(("kind", "sizes", "facts"), PAYS)
def test_what_the_time_model_says(kind, sizes, facts):
    ours, theirs = times(kind, sizes, **facts)
    assert 0.4 * theirs < ours < theirs if kind != "product" else ours < 0.6 * theirs


@pytest.mark.skipif(torch.cuda.is_available(), reason="an H200 is assumed where no GPU is")
def test_a_bare_product_stays_cublass():
    ours, theirs = times("product", (8192, 4096, 1024), a=False, b=True)
    assert not ours < theirs


@pytest.mark.skipif(torch.cuda.is_available(), reason="an H200 is assumed where no GPU is")
def test_logits_that_are_not_in_memory_are_worth_some_time():
    from fusedops._inductor.decide import SPARED_BYTES, WORTH

    large = {"training": True, "dx": True, "dw": True, "model": True}
    model = times("linear_cross_entropy", (8192, 128256, 4096), **large)
    assert model.spared() >= SPARED_BYTES
    ours, theirs = model.times()
    assert WORTH * ours < theirs
    assert times("linear_cross_entropy", (512, 50257, 768), **large).spared() == 0


# ---- options, caches, report ----


def test_options():
    ours = fusedops.inductor("max-autotune-no-cudagraphs", epilogue_fusion=False)
    assert list(ours) == ["options"]
    assert ours["options"]["max_autotune"] is True
    assert ours["options"]["epilogue_fusion"] is False
    with pytest.raises(RuntimeError, match="Unrecognized mode"):
        fusedops.inductor("no such mode")


def test_a_pass_that_the_user_had_set_runs_first(device):
    seen = []
    ours = fusedops.inductor(
        force=True, joint_custom_pre_pass=lambda graph: seen.append(len(graph.nodes))
    )
    model = make("gelu", device)
    step(compiled(model, ours), model, inputs(device))
    assert len(seen) == 1
    assert ours.report.kinds() == ["mlp"]
    assert ours["options"]["joint_custom_pre_pass"].uuid() is None  # as for that pass alone


def test_the_pass_is_idempotent(device):
    model, x = make("gelu", device), inputs(device)
    ours = fusedops.inductor(force=True)
    twice = fusedops.inductor(
        force=True, joint_custom_pre_pass=ours["options"]["joint_custom_pre_pass"]
    )
    got = step(compiled(model, twice), model, x)
    assert ours.report.kinds() == ["mlp"]
    assert twice.report.replaced == []
    assert_close(got, step(model, model, x), 1e-5)


def test_the_key_of_the_cache():
    key = lambda **options: fusedops.inductor(**options)["options"]["joint_custom_pre_pass"].uuid()  # noqa: E731
    assert key() == key()
    assert key() != key(force=True)


def test_the_second_compilation_comes_from_the_caches(device, tmp_path, monkeypatch):
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model, x = make("gelu", device), inputs(device)
    want = step(model, model, x)
    for run in range(2):
        torch._dynamo.reset()
        counters.clear()
        ours = fusedops.inductor(force=True)
        got = step(torch.compile(model, fullgraph=True, **ours), model, x)
        assert_close(got, want, 1e-5)
        assert counters["aot_autograd"]["autograd_cache_hit"] == run
        assert counters["aot_autograd"]["autograd_cache_bypass"] == 0
        assert ours.report.kinds() == ([] if run else ["mlp"])


def test_report(device):
    model = nn.Sequential(make("gelu", device), nn.Linear(K, 8, device=device))
    ours = fusedops.inductor(force=True)
    step(compiled(model, ours), model, inputs(device))
    text = str(ours.report)
    assert "1 site(s) replaced, 1 product(s) left" in text
    assert "mlp" in text
    assert "32 x 32 x 16 x 16" in text
    assert "nothing behind it" in text
    assert str(fusedops.explain(ours)) == text
    ours.report.clear()
    assert "0 graph(s) compiled" in str(ours.report)


def test_forward_takes_no_size_from_a_tangent(device):
    """The gradient's place is before forward's nodes, and of a sum of sizes it is the first."""
    layer = nn.Linear(8, 8, device=device)

    def function(x, z):
        both = torch.cat([x, z], 1)
        return layer(both) @ both.transpose(1, 2) @ both

    ours = fusedops.inductor(force=True)
    run = compiled(function, ours, dynamic=True)
    for sizes in ((3, 5), (4, 7)):
        given = [torch.randn(2, n, 8, device=device, requires_grad=True) for n in sizes]
        got, want = (torch.autograd.grad(f(*given).square().sum(), given) for f in (run, function))
        assert_close(got, want, 1e-4)


def test_ops_are_known_before_inductor_asks(device, monkeypatch):
    """It would write down all that their arguments were made of: see `declare_fallbacks`."""
    from torch._inductor.exc import OperatorIssue
    from torch._inductor.lowering import lowerings

    asked = []
    monkeypatch.setattr(OperatorIssue, "operator_str", lambda *given: asked.append(given) or "")
    for op in [op for op in lowerings if str(op).startswith("fusedops.")]:
        monkeypatch.delitem(lowerings, op)
    ours = fusedops.inductor(force=True)
    model, x = make("gelu", device), inputs(device)
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        torch.compile(model, dynamic=False, **ours)(x).sum().backward()
    assert ours.report.replaced
    assert any(str(op).startswith("fusedops.") for op in lowerings)
    assert not asked
