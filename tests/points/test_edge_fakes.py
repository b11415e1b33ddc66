"""The ops over edges without a GPU: shapes and errors of fakes, traces of layers on top of them."""

from __future__ import annotations

import functools
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from fusedops.points import BatchNorm, LayerNorm, _edge_fused, edge_conv, set_abstraction
from fusedops.points._edge_input import EdgeInput, EdgeLayer
from fusedops.points._edge_problem import INFER_SHAPES, TAPER, infer_shape, train_shape
from points.layer_cases import make_layers
from samples import edges
from util import HALVES, make, name

HALF, FP32, INT32 = "half", torch.float32, torch.int32
NONE = ((0,), FP32)
NO_HALF, NO_INT16 = ((0,), HALF), ((0,), torch.int16)

# (shape, dtype) of the results, sample by sample.
RESULTS = {
    "edge_counts": [[((10,), INT32)]],
    "edge_list": [
        [((160, 4), INT32), ((2, 5, 16), torch.int64), ((0,), INT32), ((1, 160, 8), HALF)],
        [((160, 4), INT32), ((0, 5, 16), torch.int64), ((10,), INT32), ((2, 160, 8), HALF)],
        [((160, 4), INT32), ((2, 5, 16), torch.int64), ((0,), INT32), ((0, 160, 8), HALF)],
    ],
    "edge_parameters": [
        [((2, 32, 8), HALF), ((2048,), HALF), ((96, 2), FP32)],
        [((1, 64, 8), HALF), NO_HALF, ((64, 2), FP32)],
        [((0, 0, 8), HALF), ((2048,), HALF), ((96, 2), FP32)],
    ],
    "edge_mlp_forward": [
        [((2, 5, 60), HALF), NONE, NO_INT16, NONE, NONE],
        [NO_HALF, ((2, 5, 128), FP32), ((2, 5, 128), torch.int16), ((256, 2), FP32),
         ((4, 128), FP32)],
        [NO_HALF, ((2, 5, 250), FP32), ((2, 5, 250), torch.int16), NONE, NONE],
        [NO_HALF, NONE, NO_INT16, ((64, 2), FP32), ((4, 32), FP32)],
        [NO_HALF, ((2, 5, 64), FP32), ((2, 5, 64), torch.int16), ((64, 2), FP32), ((4, 64), FP32)],
    ],
    "edge_mlp_backward_": [
        [((160, 64), HALF), ((64, 2), FP32), ((64, 2), FP32), ((128, 64), FP32)],
        [((160, 32), HALF), ((32, 2), FP32), ((32, 2), FP32), ((256, 32), FP32)],
        [((0, 64), HALF), ((64, 2), FP32), ((0, 2), FP32), ((64, 64), FP32)],
    ],
    "edge_pool_forward": [[((2, 5, 10), HALF)], [((2, 5, 64), HALF)]],
    "edge_pool_backward": [
        [((2, 5, 64), INT32), ((64, 2), FP32), ((0, 2), FP32)],
        [((2, 5, 64), INT32), ((64, 2), FP32), ((64, 2), FP32)],
    ],
    "edge_moments": [[((160, 4), FP32)]] * 2,
    "edge_winners": [[((160, 64), HALF)]],
    "edge_group_sums": [[((10, 32), FP32)], [((10, 32), FP32)], [((10, 64), FP32)]],
    "edge_products": [[((96, 16), FP32)], [((128, 16), FP32)]],
    "edge_first_grads": [[((64, 16), HALF)]] * 2 + [[((96, 16), HALF)]] * 2,
    "edge_close": [
        [((70, 64), FP32), ((64, 3), FP32)], [((70, 64), FP32), ((0, 3), FP32)],
    ],
    "edge_feature_grads": [[((300, n), HALF)] for n in (9, 9, 3, 3, 6, 6)],
    "edge_lists": [[((160,), INT32), ((80, 2), INT32)]],
    "edge_point_sums": [[((80, 40), FP32)], [((80, 64), FP32)]],
    "edge_message_sums": [[((80, 40), HALF)], [((3, 33), HALF)]],
    "edge_point_moments": [[((80, 4), FP32)]] * 2,
    "edge_conv_forward_": [
        [NO_HALF, ((2, 40, 64), FP32), ((2, 40, 64), torch.int16), ((2, 40, 64), FP32),
         ((64, 2), FP32), ((4, 64), FP32)],
        [((2, 40, 40), HALF), NONE, NO_INT16, NONE, NONE, NONE],
        [NO_HALF, ((2, 40, 136), FP32), ((2, 40, 136), torch.int16), NONE, NONE, NONE],
    ],
    "edge_conv_backward": [
        [((2, 40, 128), HALF), ((2, 40), torch.bool)],
        [((2, 40, 272), HALF), ((2, 40), torch.bool)],
    ],
}  # fmt: skip
every_op = pytest.mark.parametrize("op", edges.OF_HALVES)
meta_and_cuda = pytest.mark.parametrize("on", ["meta", pytest.param("cuda", marks=pytest.mark.gpu)])


def moved(arguments, device):
    return [a.to(device) if isinstance(a, torch.Tensor) else a for a in arguments]


def call(op, arguments):
    result = getattr(torch.ops.fusedops, op)(*arguments)
    return result if isinstance(result, tuple) else (result,)


def kinds(results, dtype, device):
    for t in results:
        assert t.device.type == device
        assert t.is_contiguous()
    return [(tuple(t.shape), HALF if t.dtype is dtype else t.dtype) for t in results]


@every_op
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_shapes_of_meta_tensors(op, dtype):
    samples = list(edges.OF_HALVES[op]("cpu", dtype))
    for arguments, expected in zip(samples, RESULTS[op], strict=True):
        assert kinds(call(op, moved(arguments, "meta")), dtype, "meta") == expected


@every_op
def test_shapes_of_fake_tensors(op):
    dtype = torch.bfloat16
    for arguments, expected in zip(edges.OF_HALVES[op]("cpu", dtype), RESULTS[op], strict=True):
        with torch._subclasses.FakeTensorMode() as mode:
            fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments]
            assert kinds(call(op, fakes), dtype, "cpu") == expected


# op: (which sample, {argument: another value}, the message)
WRONG = [
    ("edge_counts", 0, {"idx": lambda t: t[0]},
     r"idx must be 3-dimensional, \(B, M, K\); got shape \(5, 16\)"),
    ("edge_counts", 0, {"idx": lambda t: t[:, :0]}, "idx must have from 1 to .* entries; got 0"),
    ("edge_counts", 0, {"n": lambda _: 0},
     "the clouds must have from 1 to .* points together; got 2 of 0"),
    ("edge_counts", 0, {"idx": lambda t: t.repeat(1, 1, 126)},
     "idx must have at most 2000 neighbours; got 2016"),
    ("edge_list", 0, {"ends": lambda t: t[1:]}, r"ends must have shape \(10\); got \(9,\)"),
    ("edge_list", 0, {"ends": lambda t: t.long()}, "ends must have dtype int32; got int64"),
    ("edge_mlp_forward", 0, {"list": lambda t: t[0]}, r"list must have shape \(E, 4\); got \(4,\)"),
    ("edge_mlp_forward", 0, {"list": lambda t: t[1:]},
     "there must be groups of as many rows; got 10 groups and 159 rows"),
    ("edge_list", 0, {"centers": lambda t: t[:, :1]},
     r"centers must have shape \(2, 5, 3\); got \(2, 1, 3\)"),
    ("edge_list", 1, {"features": lambda t: t.repeat(1, 1, 2)},
     "features must have from 1 to 10 channels; got 20"),
    ("edge_list", 0, {"like": lambda t: t.float()},
     "like must be float16 or bfloat16; got float32"),
    ("edge_parameters", 0, {"feature_weight": lambda t: t.repeat(1, 2)},
     r"feature_weight must have shape \(O, I\) with O up to 32 and I up to 10; got \(30, 20\)"),
    ("edge_parameters", 0, {"w2": lambda t: t.float()},
     "w2 must be bfloat16 on .*; got float32 on .*"),
    ("edge_parameters", 0, {"gamma1": lambda t: t.repeat(2)},
     r"gamma must have shape \(C,\) with C up to 32; got \(60,\)"),
    ("edge_parameters", 0, {"var1": lambda t: t.double()},
     "var must be float32 on .*; got float64 on .*"),
    ("edge_parameters", 0, {"c1": lambda _: 0},
     "widths must be from 1 to 1024, and 0 behind the last; got 0"),
    ("edge_mlp_forward", 1, {"operands": lambda _: None},
     "operands must be a tensor where rows is None; got None"),
    ("edge_mlp_forward", 0, {"operands": lambda _: None},
     "operands and first_weight must come together"),
    ("edge_mlp_forward", 0, {"operands": lambda t: t.repeat(3, 1, 1)},
     "operands must have 1 or 2 planes; got 3"),
    ("edge_mlp_forward", 0, {"rows": lambda t: t[0]},
     r"rows must be 3-dimensional, \(B, N, C\); got shape \(40, 32\)"),
    ("edge_mlp_forward", 0, {"clouds": lambda _: 0},
     "ends must have as many groups for each of 0 clouds; got 10"),
    ("edge_mlp_forward", 0, {"rows": lambda t: t[:, :0]},
     r"clouds must have points; got \(2, 0, 32\)"),
    ("edge_mlp_forward", 0, {"weights": lambda t: t.float()},
     "weights must be float16 or bfloat16; got float32"),
    ("edge_mlp_forward", 0, {"c1": lambda _: 0}, "there must be 1 to 4 widths; got 0"),
    ("edge_mlp_forward", 0, {"c1": lambda _: 48},
     "widths but the last must all be 32, 64 or 128; got 48"),
    ("edge_mlp_forward", 0, {"c2": lambda _: 96},
     "the last width must be 32, 64 or a multiple of 128 up to 1024; got 96"),
    ("edge_mlp_forward", 0, {"rows": lambda t: t[..., :16]},
     r"rows must have shape \(2, 40, 32\); got \(2, 40, 16\)"),
    ("edge_mlp_forward", 0, {"operands": lambda t: t[:, 1:]},
     r"operands must have shape \(1, 160, 8\); got \(1, 159, 8\)"),
    ("edge_mlp_forward", 0, {"weights": lambda t: t[1:]},
     r"weights must have shape \(2048\); got \(2047,\)"),
    ("edge_mlp_forward", 0, {"affine": lambda t: t[1:]},
     r"affine must have shape \(96, 2\); got \(95, 2\)"),
    ("edge_mlp_forward", 0, {"channels": lambda _: 65}, "channels must be from 1 to 64; got 65"),
    ("edge_mlp_forward", 3, {"pool": lambda _: True},
     "the last width must be at least 64 where it is pooled; got 32"),
    ("edge_mlp_forward", 0, {"sums": lambda _: True},
     "infer alone, pool or sums must be asked for"),
    ("edge_mlp_backward_", 0, {"winners": lambda _: None},
     "winners or above must be given, and not both"),
    ("edge_mlp_backward_", 0, {"dense": lambda t: t[1:]},
     r"dense must have shape \(128, 2\); got \(127, 2\)"),
    ("edge_mlp_backward_", 0, {"below_stats": lambda t: t[1:]},
     r"below_stats must have shape \(4, 64\); got \(3, 64\)"),
    ("edge_mlp_backward_", 2, {"above": lambda t: t.t().contiguous().t()},
     "above must be contiguous and aligned to 16 bytes: where it is as wide as what is below, that "
     r"is written there; got shape \(160, 64\)"),
    ("edge_pool_forward", 0, {"affine": lambda t: t[:40]},
     r"affine must have shape \(C, 2\) with C at least 10 and a multiple of 32; got \(40, 2\)"),
    ("edge_pool_forward", 0, {"like": lambda t: t.float()},
     "like must be float16 or bfloat16; got float32"),
    ("edge_pool_backward", 0, {"dout": lambda t: t[:1]},
     r"dout must have shape \(2, 5, 10\) like best; got \(1, 5, 10\)"),
    ("edge_moments", 0, {"centers": lambda t: t[0]},
     r"centers must be 3-dimensional, \(B, N, 3\); got shape \(5, 3\)"),
    ("edge_winners", 0, {"winners": lambda t: t[:0]},
     "ends must have as many groups for each of 0 clouds; got 10"),
    ("edge_winners", 0, {"winners": lambda t: t[..., :60]},
     "winners must have a multiple of 8 channels; got 60"),
    ("edge_group_sums", 0, {"rows": lambda t: t[1:]},
     r"rows must have shape \(B, N, C\) where they are gathered, else \(E, C\); got \(159, 32\)"),
    ("edge_group_sums", 0, {"rows": lambda t: t[:, :12]},
     "rows must be multiples of 16 bytes; got 12 channels"),
    ("edge_group_sums", 0, {"rows": lambda t: t.double()}, "rows must not be float64"),
    ("edge_products", 0, {"rows": lambda t: t[:, :40]},
     r"rows must have shape \(160, C\) with C a multiple of 32; got \(160, 40\)"),
    ("edge_products", 0, {"operands": lambda t: t[:0]},
     "operands must have 1 or 2 planes; got 0"),
    ("edge_first_grads", 0, {"weight": lambda t: t[:0]},
     "weight must have 1 or 2 planes; got 0"),
    ("edge_first_grads", 0, {"products": lambda t: t[1:]},
     r"products must have shape \(96, 16\); got \(95, 16\)"),
    ("edge_feature_grads", 0, {"first_weight": lambda t: t[:1]},
     r"first_weight must have shape \(2, 64, 8\); got \(1, 64, 8\)"),
    ("edge_feature_grads", 0, {"features": lambda t: torch.cat([t, t], 1)},
     "features must have up to 10 channels; got 18"),
    ("edge_feature_grads", 0, {"moments": lambda _: None}, "moments must be given where dense is"),
    ("edge_feature_grads", 0, {"sums": lambda t: t[:, :6]},
     "sums must have a multiple of 4 channels; got 6"),
    ("edge_close", 0, {"sums": lambda t: t[:, :40]},
     "sums must have a multiple of 32 channels; got 40"),
    ("edge_close", 0, {"moments": lambda _: None}, "moments must be given where dense is"),
    ("edge_close", 0, {"coordinates": lambda t: t[1:]},
     r"coordinates must have shape \(70, 3\); got \(69, 3\)"),
    ("edge_lists", 0, {"idx": lambda t: t.int()}, "idx must be int64; got int32"),
    ("edge_lists", 0, {"idx": lambda t: t[:, :0]}, "idx must have from 1 to .* entries; got 0"),
    ("edge_lists", 0, {"n": lambda _: 0},
     "the clouds must have from 1 to .* points together; got 2 of 0"),
    ("edge_point_sums", 0, {"rows": lambda t: t[1:]},
     r"rows must have shape \(160 / per_row, C\); got \(159, 40\)"),
    ("edge_point_sums", 0, {"ranges": lambda t: t.long()},
     r"entries and ranges must be what edge_lists gives; got shapes \(160,\) and \(80, 2\)"),
    ("edge_point_sums", 1, {"weights": lambda _: None},
     "weights must be given where per_row is not 1; got 16"),
    ("edge_point_sums", 1, {"weights": lambda t: t[1:]},
     r"weights must be 160 float32 values; got \(159,\)"),
    ("edge_message_sums", 0, {"rows": lambda t: t[0]},
     r"rows must be 2-dimensional, \(N, C\); got shape \(40,\)"),
    ("edge_message_sums", 0, {"entries": lambda t: t.long()},
     r"entries and ranges must be what edge_lists gives; got shapes \(160,\) and \(80, 2\)"),
    ("edge_point_moments", 0, {"entries": lambda t: t[1:]},
     r"entries must have shape \(160\); got \(159,\)"),
    ("edge_point_moments", 0, {"points": lambda t: t[1:]},
     r"points must have shape \(80, 3\); got \(79, 3\)"),
    ("edge_conv_forward_", 0, {"products": lambda t: t[..., :24]},
     "products must have twice a multiple of 8 channels; got 24"),
    ("edge_conv_forward_", 0, {"affine": lambda t: t[:40]},
     "affine must have 64 or a multiple of 128 rows, at least 64; got 40"),
    ("edge_conv_forward_", 0, {"idx": lambda t: t.repeat(1, 1, 126)},
     "idx must have at most 2000 neighbours; got 2016"),
    ("edge_conv_forward_", 0, {"idx": lambda t: t[:, 1:]},
     r"idx must have shape \(2, 40, 16\); got \(2, 39, 16\)"),
    ("edge_conv_forward_", 0, {"products": lambda t: t.mT.contiguous().mT},
     "products are written: they must be contiguous and aligned to 16 bytes"),
    ("edge_conv_forward_", 0, {"infer": lambda _: True},
     "infer or sums must be asked for, and not both"),
    ("edge_conv_backward", 0, {"totals": lambda _: None}, "totals and dense must come together"),
    ("edge_conv_backward", 0, {"winners": lambda t: t.long()},
     "winners must have dtype int32; got int64"),
]  # fmt: skip


@meta_and_cuda
@pytest.mark.parametrize(("op", "sample", "changes", "text"), WRONG)
def test_errors(on, op, sample, changes, text):
    names = [a.name for a in getattr(torch.ops.fusedops, op).default._schema.arguments]
    arguments = moved(list(edges.OF_HALVES[op]("cpu", torch.bfloat16))[sample], on)
    for argument, change in changes.items():
        at = names.index(argument)
        arguments[at] = change(arguments[at])
    with pytest.raises(RuntimeError, match=f"^{op}: {text}$"):
        call(op, arguments)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The layers' kernels are chosen for tensors of the CPU, as by an H100."""
    monkeypatch.setattr(_edge_fused, "_shared_limit", lambda device: 232448)


@pytest.fixture
def graphs(as_on_a_gpu):
    """[the names of a graph's ops of ours]: forward, then backward."""
    torch._dynamo.reset()
    yield []
    torch._dynamo.reset()


def backend_of(graphs):
    """A backend that lists a graph's ops, and runs none."""

    def compiler(graph, inputs):
        nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
        # An op that writes to an argument is one of its own, which has the op as an argument.
        found = [
            str(n.args[0] if "auto_functionalized" in str(n.target) else n.target).split(".")
            for n in nodes
        ]
        graphs.append([words[1] for words in found if words[0] == "fusedops"])
        outputs = next(node for node in graph.graph.nodes if node.op == "output").args[0]

        def run(_inputs):
            values = [o.meta["val"] if isinstance(o, torch.fx.Node) else o for o in outputs]
            return [
                torch.zeros([int(s) for s in v.shape], dtype=v.dtype)
                if isinstance(v, torch.Tensor) else v
                for v in values
            ]  # fmt: skip

        run._boxed_call = True
        return run

    return aot_autograd(fw_compiler=compiler, bw_compiler=compiler)


def cloud_of(features, dtype=torch.bfloat16):
    xyz = make(2, 100, 3, dtype=torch.float32, device="cpu")
    rows = make(2, 100, features, dtype=dtype, device="cpu") if features else None
    idx = torch.randint(100, (2, 30, 16))
    return xyz, rows, xyz[:, :30].contiguous(), idx


TRACED = {
    "features": (12, (64, 64, 128), "batch_train", ("edge_moments", "edge_close")),
    "few features": (6, (64, 64, 128), "batch_train", ("edge_products", "edge_first_grads")),
    "offsets alone": (0, (64, 64, 128), "batch_train", ("edge_products",)),
    "one layer": (6, (64,), "batch_train", ("edge_winners", "edge_products")),
    "running statistics": (13, (20, 10), "batch_eval", ("edge_group_sums", "edge_close")),
    "no norm": (3, (32, 48, 50, 200), "none", ("edge_products",)),
}


@pytest.mark.parametrize(
    ("case", "dynamic"), [*((case, None) for case in TRACED), ("features", True)]
)
def test_set_abstraction_is_one_graph(graphs, case, dynamic):
    features, widths, kind, last = TRACED[case]
    given = cloud_of(features)
    layers = make_layers(3 + features, widths, kind, torch.bfloat16, "cpu", torch.float32)
    for weight in layers[0]:
        weight.requires_grad_()
    compiled = torch.compile(
        set_abstraction, fullgraph=True, backend=backend_of(graphs), dynamic=dynamic
    )
    out = compiled(*given, *layers)
    assert out.shape == (2, 30, widths[-1])
    grads = torch.autograd.grad(out.sum(), layers[0])
    assert [g.shape for g in grads] == [w.shape for w in layers[0]]
    forward, backward = graphs
    passes = len(widths) if kind == "batch_train" else 1
    assert forward.count("edge_mlp_forward") == passes
    assert backward.count("edge_mlp_backward_") == len(widths) - 1
    assert set(last) <= set(backward)


def test_inference_and_edge_conv_are_one_graph(graphs):
    given = cloud_of(6)
    layers = make_layers(9, (64, 128), "batch_eval", torch.bfloat16, "cpu", torch.float32)
    compiled = torch.compile(set_abstraction, fullgraph=True, backend=backend_of(graphs))
    with torch.no_grad():
        compiled(*given, *layers)
    assert "edge_mlp_forward" in graphs[0]
    assert "edge_pool_forward" not in graphs[0]
    layers = make_layers(12, (64,), "batch_train", torch.bfloat16, "cpu", torch.float32)
    rows = given[1].requires_grad_()
    compiled = torch.compile(edge_conv, fullgraph=True, backend=backend_of(graphs))
    compiled(rows, torch.randint(100, (2, 100, 16)), *layers).sum().backward()
    assert "edge_conv_forward_" in graphs[1]
    assert "edge_conv_backward" in graphs[2]


def edges_of(widths, norms, dtype=torch.bfloat16, k=16, dim=3):
    xyz = torch.zeros(2, 10, dim)
    idx = torch.zeros(2, 4, k, dtype=torch.int64)
    given = EdgeInput(None, None, torch.zeros(widths[0], dim, dtype=dtype), xyz, None, idx, dtype)
    weights = [None, *(torch.zeros(b, a, dtype=dtype) for a, b in pairwise(widths))]
    return given, [EdgeLayer(w, None, norm) for w, norm in zip(weights, norms, strict=True)]


def supports(widths=(64, 64, 128), norm=None, activation="relu", slope=0.01, pool="max", **how):
    given, layers = edges_of(widths, [norm] * len(widths), **how)
    return _edge_fused.supports(given, layers, activation, slope, pool)


def test_what_has_kernels(as_on_a_gpu):
    """The rest is composed."""
    stats = functools.partial(BatchNorm, None, None, torch.zeros(64), torch.ones(64))
    taken = (
        {}, {"widths": (128, 128, 256)}, {"widths": (20, 10)}, {"widths": (256,)},
        {"widths": (1, 100, 100, 200)}, {"norm": stats()}, {"norm": stats(training=True)},
        {"activation": "none"}, {"activation": "leaky_relu", "slope": 0.2},
        {"dtype": torch.float16}, {"k": 2000},
    )  # fmt: skip
    composed = (
        {"widths": (129, 64)}, {"widths": (64, 257)}, {"widths": (64,) * 5},
        {"norm": stats(group=object())}, {"norm": LayerNorm(None, None)}, {"activation": "gelu"},
        {"activation": "leaky_relu", "slope": 1.5}, {"pool": "mean"}, {"pool": "sum"},
        {"dtype": torch.float32}, {"k": 2001}, {"k": 0}, {"dim": 2},
    )  # fmt: skip
    assert [case for case in taken if not supports(**case)] == []
    assert [case for case in composed if supports(**case)] == []


@pytest.fixture
def infers_apart(as_on_a_gpu, monkeypatch):
    """Likewise the kernels for inference alone."""
    monkeypatch.setattr(_edge_fused, "_has_infer_kernels", lambda device: True)


def test_shapes_are_those_of_the_kernels():
    header = Path(__file__).resolve().parents[2] / "csrc/cuda/points/edges/edge_problem.h"
    if not header.exists():
        pytest.skip("the sources are not here")
    table = re.search(r"kEdgeShapes\[\] = \{(.*?)\};", header.read_text(), re.DOTALL)
    shapes = re.findall(r"\{(\d+), (\d+), (\d+)\}", table.group(1))
    assert tuple(tuple(map(int, shape)) for shape in shapes) == INFER_SHAPES
    taper = re.search(r"kEdgeTaper = \{(\d+), (\d+), (\d+)\};", header.read_text())
    assert tuple(map(int, taper.groups())) == TAPER


@pytest.mark.parametrize(
    ("channels", "shape"),
    [
        ((64, 64, 128), (64, 64, 128)), ((64, 96, 128), (64, 96, 128)),
        ((128, 196, 256), (128, 208, 256)), ((20, 90, 100), (64, 96, 128)),
        ((64, 64, 200), None), ((32, 32, 100), None), ((64, 209, 256), None),
        ((64, 64), None), ((64, 64, 64, 64), None),
    ],
)  # fmt: skip
def test_least_shape(channels, shape):
    """Not where equal widths are less work."""
    assert infer_shape(channels) == shape


def test_what_inference_has_alone(infers_apart):
    stats = functools.partial(BatchNorm, None, None, torch.zeros(64), torch.ones(64))
    wide = {"widths": (128, 196, 256)}
    given, layers = edges_of(wide["widths"], [stats()] * 3)
    with torch.no_grad():
        assert supports(**wide, norm=stats())
        assert not supports(**wide, norm=stats(training=True))
        assert not supports(**wide, activation="leaky_relu")
        assert not _edge_fused.supports(given, layers, "relu", 0.0, "max", False)
        shape = _edge_fused.shape_of(given, layers, "relu", True)
    assert shape == (128, 208, 256)
    layers[1].weight.requires_grad_()
    assert not _edge_fused.supports(given, layers, "relu", 0.0, "max")
    with torch.no_grad():
        assert _edge_fused.supports(given, layers, "relu", 0.0, "max")


@pytest.mark.parametrize(
    ("channels", "shape"),
    [
        ((64, 96, 128), TAPER), ((10, 65, 100), TAPER), ((65, 96, 128), None),
        ((64, 64, 128), None), ((64, 128, 64), None), ((64, 128, 256), None),
        ((64, 128, 128, 128), None), ((64, 128), None), ((64, 196, 128), None),
    ],
)  # fmt: skip
def test_shape_of_training(channels, shape):
    """Where the first layer alone is narrower than the widths of all."""
    assert train_shape(channels) == shape


def test_training_traces_with_widths_of_its_own(infers_apart, graphs):
    given = cloud_of(6)
    layers = make_layers(9, (64, 96, 128), "batch_train", torch.bfloat16, "cpu", torch.float32)
    compiled = torch.compile(set_abstraction, fullgraph=True, backend=backend_of(graphs))
    for weight in layers[0]:
        weight.requires_grad_()
    grads = torch.autograd.grad(compiled(*given, *layers).sum(), layers[0])
    assert [g.shape for g in grads] == [w.shape for w in layers[0]]
    assert graphs[1].count("edge_mlp_backward_") == 2


def test_inference_traces_with_widths_of_its_own(infers_apart, graphs):
    given = cloud_of(6)
    layers = make_layers(9, (64, 96, 128), "batch_eval", torch.bfloat16, "cpu", torch.float32)
    compiled = torch.compile(set_abstraction, fullgraph=True, backend=backend_of(graphs))
    with torch.no_grad():
        assert compiled(*given, *layers).shape[2] == 128
    assert "edge_mlp_forward" in graphs[0]


def test_the_cpu_has_no_kernels():
    assert not supports()


def test_half_precision_is_one_graph_on_the_cpu():
    given = cloud_of(6)
    layers = make_layers(9, (64, 128), "batch_eval", torch.bfloat16, "cpu", torch.float32)
    compiled = torch.compile(set_abstraction, fullgraph=True, backend="eager")
    assert torch.equal(compiled(*given, *layers), set_abstraction(*given, *layers))


def test_small_shared_memory_composes(monkeypatch):
    monkeypatch.setattr(_edge_fused, "_shared_limit", lambda device: 100 * 1024)
    assert supports((64, 64, 64))
    assert not supports((128, 128, 128))
