"""explain of point layers: the path and the passes of the call itself, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fusedops
from fusedops import points
from fusedops._tuning import edge_costs
from fusedops.points import _edge_fused

SA1 = (32, 1024, 512, 32, 0, (64, 64, 128))
SA2 = (32, 512, 128, 64, 128, (128, 128, 256))
HOPPER = 232448


def set_abstraction(*sizes, gpu="H200", **options):
    return fusedops.explain_set_abstraction(*sizes, gpu=gpu, **options)


def edge_conv(*sizes, gpu="H200", **options):
    return fusedops.explain_edge_conv(*sizes, gpu=gpu, **options)


class Trace(TorchDispatchMode):
    """The passes that a call launches, as (op, layers, what it finds)."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func).removeprefix("fusedops.").removesuffix(".default")
        if name.startswith(("edge_", "group_b", "interpolate_b")):
            layers = sum(w > 0 for w in args[9:13]) if "edge_mlp" in name else 0
            finds = tuple(args[15:18]) if name == "edge_mlp_forward" else ()
            self.found.append((name, layers, finds))
        return func(*args, **(kwargs or {}))


def passes_of(found):
    """The same of a report; the two passes of a wide layer back are one op."""
    traced = []
    for one in found.passes:
        finds = ()
        if one.op == "edge_mlp_forward":
            finds = tuple(word in one.what for word in ("pooled", "maxima", "statistics"))
        if "linear" not in one.op and not one.what.startswith("weights:"):
            traced.append((one.op, one.layers, finds))
    return traced


@pytest.fixture
def fused(monkeypatch):
    """Calls on meta tensors take the kernels' path."""
    monkeypatch.setattr(_edge_fused, "_shared_limit", lambda _: HOPPER)


def leaf(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def norms_of(channels, training):
    statistics = [() if training else (meta(c), meta(c)) for c in channels]
    return [
        points.BatchNorm(
            leaf(c, dtype=torch.float32), leaf(c, dtype=torch.float32), *s, training=training
        )
        for c, s in zip(channels, statistics, strict=True)
    ]


def call(kind, sizes, training, backward):
    """(the passes, the bytes that are kept) of the layer on meta tensors."""
    clouds, count, *groups, k, features, channels = sizes
    groups = groups[0] if groups else count
    columns = 2 * features if kind == "edge_conv" else 3 + features
    weights = [leaf(b, a) for a, b in zip((columns, *channels[:-1]), channels, strict=True)]
    norms = norms_of(channels, training)
    rows = leaf(clouds, count, features) if features else None
    idx = meta(clouds, groups, k, dtype=torch.int64)
    xyz, centers = meta(clouds, count, 3), meta(clouds, groups, 3)
    given = {id(t) for t in (rows, idx, xyz, centers) if t is not None}
    kept = {}

    def keep(tensor):
        if id(tensor) not in given:
            kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t)
    with Trace() as trace, hooks, torch.set_grad_enabled(backward):
        if kind == "edge_conv":
            out = points.edge_conv(rows, idx, weights, norms=norms)
        else:
            out = points.set_abstraction(xyz, rows, centers, idx, weights, norms=norms)
        if backward:
            out.sum().backward()
    return trace.found, sum(kept.values())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("set_abstraction", SA1),
        ("set_abstraction", SA2),
        ("set_abstraction", (2, 4096, 1024, 32, 6, (32, 40, 48, 200))),
        ("set_abstraction", (8, 1000, 500, 20, 5, (64,))),
        ("set_abstraction", (8, 1000, 500, 20, 11, (64,))),
        ("set_abstraction", (8, 1000, 500, 20, 0, (64,))),
        ("edge_conv", (32, 1024, 20, 64, (64, 64))),
        ("edge_conv", (8, 1000, 20, 3, (64,))),
        ("edge_conv", (8, 1000, 20, 16, (60,))),
        ("edge_conv", (8, 1000, 20, 16, (256,))),
    ],
)
def test_passes_and_bytes_are_those_of_the_call(fused, kind, sizes, backward, training):
    explain = set_abstraction if kind == "set_abstraction" else edge_conv
    found = explain(*sizes, training=training, backward=backward)
    traced, kept = call(kind, sizes, training, backward)
    assert found.path == "fused"
    assert passes_of(found) == traced
    if backward:
        assert found.kept_bytes == pytest.approx(kept, rel=0.02, abs=400_000)
    else:
        assert found.kept_bytes == 0


def test_composed_layers_keep_at_least_that():
    sizes = (8, 1000, 500, 20, 5, (32, 64))
    found = set_abstraction(*sizes, shared_memory=0)
    traced, kept = call("set_abstraction", sizes, True, True)
    assert found.path == "composed"
    assert not [op for op, *_ in traced if op.startswith("edge_mlp")]
    assert 0 < found.kept_bytes <= kept


@pytest.mark.parametrize(
    ("options", "channels", "why"),
    [
        ({"dtype": torch.float32}, (64,), "float16 and bfloat16"),
        ({"pool": "mean"}, (64,), "pool by max"),
        ({"activation": "gelu"}, (64,), "relu, leaky_relu"),
        ({"activation": "leaky_relu", "negative_slope": -0.1}, (64,), "slope from 0 to 1"),
        ({}, (8, 8, 8, 8, 8), "at most 4 layers"),
        ({}, (129, 64), "more than 128 channels"),
        ({}, (64, 257), "more than 256 channels"),
        ({"norm": "layer"}, (64,), "batch norm of one process"),
        ({"norm": "sync_batch"}, (64,), "batch norm of one process"),
        ({"shared_memory": 0}, (64,), "CUDA"),
        ({"shared_memory": 100_000}, (128, 128, 256), "shared memory"),
        ({"gpu": "A100"}, (128, 128, 256), "shared memory"),
    ],
)
def test_why_it_is_composed(options, channels, why):
    found = set_abstraction(2, 100, 10, 16, 12, channels, **options)
    assert found.path == "composed"
    assert why in found.why
    assert why in str(found)
    assert all(one.op in ("composed", "linear", "linear_backward") for one in found.passes)


def test_no_edges_and_many_neighbours_are_composed():
    assert set_abstraction(2, 100, 0, 16, 4, (64,)).why == "there are no edges"
    assert "2000 neighbours" in set_abstraction(2, 100, 1, 2001, 4, (64,)).why


def test_inference_may_fit_where_training_does_not():
    sizes = (2, 100, 10, 16, 4, (128, 128, 128, 256))
    needs = {b: max(one.shared_memory for one in set_abstraction(*sizes, shared_memory=10**6,
             training=False, backward=b).passes) for b in (False, True)}  # fmt: skip
    assert needs[False] < needs[True]
    for limit, backward, path in ((needs[False], False, "fused"), (needs[False], True, "composed"),
                                  (needs[True], True, "fused")):  # fmt: skip
        found = set_abstraction(*sizes, training=False, backward=backward, shared_memory=limit)
        assert found.path == path


def test_arithmetic_by_hand():
    found = set_abstraction(*SA1)
    edges = 32 * 512 * 32
    assert found.mlp_flops == 2 * edges * (3 * 64 + 64 * 64 + 64 * 128)
    flops = [one.flops // (2 * edges) for one in found.passes if "edge_mlp" in one.op]
    first, middle, last = 16 * 64, 64 * 64, 64 * 128
    assert flops == [
        first, first + middle, first + middle + last,
        first + middle + 3 * last, first + 3 * middle,
    ]  # fmt: skip
    products = 16 * (64 + 3 * 16)  # with the operands, and their moments
    assert found.flops == 2 * edges * (sum(flops) + products)
    # eval without backward is one pass, whose floor is its arithmetic
    lone = [p for p in set_abstraction(*SA1, training=False).passes if "edge_mlp" in p.op]
    assert [p.floor_us for p in lone] == [pytest.approx(lone[0].flops / 325e6)]
    # 256 columns are two slices, of which each has the layers before
    wide = [p for p in set_abstraction(*SA2).passes if "edge_mlp" in p.op]
    edges, square = 32 * 128 * 64, 128 * 128
    assert wide[2].flops == 2 * edges * (2 * (16 * 128 + square) + 2 * square)
    assert [p.what.split(":")[0] for p in wide[3:]] == ["data", "weights", "both"]


def test_floors_are_by_the_largest_term_and_the_gpu():
    gpu = edge_costs.Gpu("", 132, HOPPER, 4.2)
    one = edge_costs.ExplainedPass("", False, "", flops=325_000_000, moved=1, gathered=1)
    assert one.on(gpu).floor_us == pytest.approx(1)
    assert edge_costs.ExplainedPass("", False, "", moved=4_200_000).on(gpu).floor_us == 1
    assert edge_costs.ExplainedPass("", False, "", gathered=11_000_000).on(gpu).floor_us == 2
    half = set_abstraction(*SA1, sm_count=66).passes
    for a, b in zip(set_abstraction(*SA1).passes, half, strict=True):
        bound = a.flops > 2e9
        assert b.floor_us == pytest.approx(a.floor_us * (2 if bound else 1), rel=0.9 * (not bound))
    times = [set_abstraction(*SA1, gpu=name).forward_us for name in ("H200", "H100", "A100")]
    assert times == sorted(times)


def test_the_page_shows_a_real_report():
    page = Path(__file__).resolve().parents[2] / "docs/points.md"
    if not page.exists():
        pytest.skip("the documents are not here")
    assert f"```text\n{set_abstraction(*SA1)}\n```" in page.read_text()


def test_the_report_says_what_it_is():
    text = str(set_abstraction(*SA1))
    for part in (
        "set_abstraction of 32 x 1024 points, 512 groups of 32", "path      fused",
        "layers 1 to 3 chain in registers", "kept ", "325 TFLOP/s",
        "a floor where no neighbour repeats, unmeasured",
        "edge_mlp_backward_", "KiB shared", "NVIDIA H200",
    ):  # fmt: skip
        assert part in text
    assert "backward" not in str(set_abstraction(*SA1, training=False))
    assert str(edge_conv(2, 100, 20, 64, (64, 128))).startswith("edge_conv of 2 x 100 points")
    if not torch.cuda.is_available():
        assert "assumed: no GPU" in set_abstraction(*SA1, gpu=None).gpu


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"points": 1.5}, TypeError, "points must be an integer; got float"),
        ({"neighbours": -1}, ValueError, "neighbours must be at least 0; got -1"),
        ({"channels": ()}, ValueError, "channels must have at least one entry"),
        ({"channels": (64, 0)}, ValueError, "channels must be at least 1; got 0"),
        ({"features": 0, "xyz": False}, ValueError, "xyz must be True where features is 0"),
        ({"dtype": torch.int32}, TypeError, "dtype must be a floating torch.dtype"),
        ({"norm": "group"}, ValueError, "norm must be one of 'batch', 'sync_batch', 'layer', None"),
        ({"pool": "min"}, ValueError, "pool must be one of"),
        ({"activation": "step"}, ValueError, "activation"),
        ({"gpu": "V100"}, ValueError, "gpu must be one of 'H200', 'H100', 'A100' or None"),
        ({"sm_count": 0}, ValueError, "sm_count must be at least 1; got 0"),
    ],
)
def test_errors(options, error, message):
    good = {"clouds": 2, "points": 100, "groups": 10, "neighbours": 8, "features": 4,
            "channels": (64,)}  # fmt: skip
    with pytest.raises(error, match=message) as found:
        fusedops.explain_set_abstraction(**{**good, **options})
    assert "explain_set_abstraction: " in str(found.value)


def test_edge_conv_needs_features():
    with pytest.raises(ValueError, match="explain_edge_conv: features must be at least 1"):
        edge_conv(2, 100, 20, 0, (64,))
