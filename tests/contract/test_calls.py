"""Arguments of wrong types: every public function says which, in its own name, in torch's type."""

from __future__ import annotations

import inspect
import re

import pytest
import torch

import fusedops
from fusedops import points
from fusedops.compat import pointnet2_ops, pytorch3d, torch_cluster


def calls(device):
    """(module, name) -> arguments that fit."""
    x, ones = torch.rand(4, 6, device=device), lambda *shape: torch.ones(shape, device=device)
    cloud, features = torch.rand(2, 8, 3, device=device), torch.rand(2, 8, 5, device=device)
    idx = torch.zeros(2, 4, 3, dtype=torch.int64, device=device)
    whole = torch.zeros(4, dtype=torch.int64, device=device)
    along = """sum mean prod amax amin norm logsumexp var std argmax argmin any all count_nonzero
        cumsum cumprod cummax cummin softmax log_softmax square relu scale_bias_act bias_act
        bias_dropout_residual square_ relu_ scale_bias_act_ bias_act_ bias_dropout_residual_"""
    pair, three = {"points": cloud, "queries": cloud}, {"idx": idx, "weights": ones(2, 4, 3)}
    channels = features.transpose(1, 2)
    table = {
        fusedops: {
            **{name: {"x": x} for name in along.split()},
            "topk": {"x": x, "k": 2},
            "bias_grad": {"dy": x},
            "bincount": {"x": whole, "bins": 4},
            "histogram": {"x": x, "bins": 4, "low": -1.0, "high": 1.0},
            "segment_reduce": {"x": x, "offsets": whole},
            "stencil1d": {"x": x, "weight": ones(3)},
            "stencil2d": {"x": x, "weight": ones(3, 3)},
            "stencil3d": {"x": cloud, "weight": ones(3, 3, 3)},
            "box_filter1d": {"x": x, "size": 3},
            "box_filter2d": {"x": x, "size": 3},
            "box_filter3d": {"x": cloud, "size": 3},
            "cross_entropy": {"logits": x, "target": whole},
            "linear_cross_entropy": {"x": x, "weight": x, "target": whole},
            "layer_norm": {"x": x, "normalized_shape": 6},
            "rms_norm": {"x": x, "normalized_shape": 6},
            "rope": {
                "q": ones(2, 3, 4, 6),
                "k": ones(2, 1, 4, 6),
                "cos": ones(4, 6),
                "sin": ones(4, 6),
            },
            "batch_norm_act": {"x": x, "running_mean": ones(6), "running_var": ones(6)},
            "conv_bn_act": {"x": ones(2, 3, 5, 5), "weight": ones(4, 3, 2, 2)},
            "linear": {"x": x, "weight": x},
            "matmul": {"a": x, "b": x.t()},
            "mlp": {"x": x, "w1": x, "b1": None, "w2": x.t(), "b2": None, "activation": "relu"},
            "gated_mlp": {"x": x, "w_gate": x, "w_up": x, "w_down": x.t()},
            "add": {"x": x, "y": x},
            "add_": {"x": x, "y": x},
            "fma": {"a": x, "x": x, "b": x},
            "fma_": {"a": x, "x": x, "b": x},
        },
        points: {
            "knn": {**pair, "k": 2},
            "ball_query": {**pair, "radius": 0.5, "k": 2},
            "ball_query_scales": {**pair, "radii": [0.5, 0.8], "ks": [2, 3]},
            "radius_search": {**pair, "radius": 0.5},
            "three_nn": pair,
            "farthest_point_sample": {"points": cloud, "n": 3},
            "group": {"features": features, "idx": idx},
            "gather": {"features": features, "idx": idx[..., 0]},
            "interpolate": {"features": features, **three},
            "three_interpolate": {"features": features, **three},
            "interpolation_weights": {"dist2": ones(2, 4, 3), "idx": idx},
            "knn_interpolate": {"features": features, **pair},
            "GridIndex": {"points": cloud},
            "set_abstraction": {
                "xyz": cloud,
                "features": features,
                "centers": cloud[:, :4],
                "idx": idx,
                "weights": [ones(4, 8)],
            },
            "edge_conv": {
                "features": features[:, :4],
                "idx": idx,
                "weights": [ones(4, 10)],
            },
            "feature_propagation": {
                "xyz": cloud,
                "known_xyz": cloud,
                "features": features,
                "known_features": features,
                "weights": [ones(4, 10)],
            },
        },
        torch_cluster: {
            "knn": {"x": cloud[0], "y": cloud[0], "k": 2},
            "knn_graph": {"x": cloud[0], "k": 2},
            "radius": {"x": cloud[0], "y": cloud[0], "r": 0.5},
            "radius_graph": {"x": cloud[0], "r": 0.5},
            "fps": {"src": cloud[0]},
        },
        pytorch3d: {
            "knn_points": {"p1": cloud, "p2": cloud},
            "knn_gather": {"x": features, "idx": idx},
            "ball_query": {"p1": cloud, "p2": cloud},
            "sample_farthest_points": {"points": cloud, "K": 3},
            "chamfer_distance": {"x": cloud, "y": cloud},
        },
        pointnet2_ops: {
            "furthest_point_sample": {"xyz": cloud, "npoint": 3},
            "gather_operation": {"features": channels, "idx": idx[..., 0]},
            "three_nn": {"unknown": cloud, "known": cloud},
            "three_interpolate": {"features": channels, "idx": idx, "weight": ones(2, 4, 3)},
            "grouping_operation": {"features": channels, "idx": idx},
            "ball_query": {"radius": 0.5, "nsample": 2, "xyz": cloud, "new_xyz": cloud},
        },
    }
    return {(module, name): given for module, of in table.items() for name, given in of.items()}


NAMES = [pytest.param(*key, id=f"{key[0].__name__}.{key[1]}") for key in calls("cpu")]


def copies(arguments):
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}


def wrong(device):
    """What may come in place of anything."""
    return [
        *(None, "bad", 1.5, True, [1.5], object(), torch.float32),
        torch.tensor(1.0, device=device),
        torch.ones(1, 1, 1, 1, 1, device=device),
        torch.ones(2, dtype=torch.int64, device=device),
    ]


def error_of(function, **arguments):
    try:
        function(**arguments)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        return error
    return None


def test_every_public_function_is_here():
    # They are no ops.
    explains = {"explain", "explain_conv_bn_act", "explain_edge_conv", "explain_set_abstraction"}
    tools = {"FuseReport", "epilogue", "fast_attention", "fuse", "fuse_loss", "inductor"}
    tools |= {"read_points", "tune"}
    for module in (fusedops, points, torch_cluster, pytorch3d, pointnet2_ops):
        public = {n for n in module.__all__ if inspect.isfunction(getattr(module, n))}
        assert public - tools - explains <= {
            name for where, name in calls("cpu") if where is module
        }


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_wrong_types(device, module, name):
    function, good = getattr(module, name), calls(device)[module, name]
    function(**copies(good))
    for argument, parameter in inspect.signature(function).parameters.items():
        for bad in wrong(device):
            error = error_of(function, **copies({**good, argument: bad}))
            if error is None:  # it stands for a value of the right type, or is not read
                is_tensor = parameter.annotation in ("Tensor", "Tensor | None")
                assert isinstance(bad, torch.Tensor) or bad is None or not is_tensor
            elif module is not pytorch3d or type(error) is not ValueError:  # its own words
                assert re.match(rf"{name}: [\w.\[\]]+ ", str(error)), (argument, bad, error)


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_what_is_no_tensor(device, module, name):
    function, good = getattr(module, name), calls(device)[module, name]
    for argument, value in good.items():
        if isinstance(value, torch.Tensor):
            for bad in ([1.0], 1.0, "x", value.cpu().numpy()):
                kind = ValueError if name == "chamfer_distance" else TypeError
                with pytest.raises(kind) as caught:
                    function(**{**good, argument: bad})
                if kind is TypeError:
                    assert re.match(
                        rf"{name}: {argument} must be a Tensor.*; got", str(caught.value)
                    )


def test_errors_name_the_function_that_was_called(device):
    x = torch.ones(2, 8, 3, device=device)
    whole = x.long()
    p = fusedops.points
    floats = "must be float16, bfloat16, float32 or float64; got int64"
    for call, text in [
        (lambda: fusedops.box_filter1d(whole, 3), f"box_filter1d: x {floats}"),
        (lambda: fusedops.stencil2d(whole, whole[0]), f"stencil2d: x {floats}"),
        (lambda: fusedops.norm(whole), f"norm: x {floats}"),
        (lambda: fusedops.norm(x, 2, 5), "norm: dim must be from -3 to 2 for x with 3"),
        (lambda: fusedops.square_(x.bool()), "square_: x must be"),
        (lambda: p.radius_search(whole, x, 1.0), f"radius_search: points {floats}"),
        (lambda: p.radius_search(x, x, -1.0), "radius_search: radius must not be negative; got -1"),
        (lambda: p.three_nn(whole, x), f"three_nn: points {floats}"),
        (lambda: p.knn_interpolate(x, x, x, 2000), "knn_interpolate: k must be from 1 to 1024"),
        (lambda: p.gather(x, x[..., 0]), "gather: idx must have dtype int64; got float32"),
        (lambda: p.GridIndex(whole), f"GridIndex: points {floats}"),
        (lambda: torch_cluster.knn(x[0], whole[0], 2), f"knn: y {floats}"),
        (lambda: torch_cluster.radius_graph(whole[0], 1.0), f"radius_graph: x {floats}"),
        (lambda: pytorch3d.knn_points(x, whole), f"knn_points: p2 {floats}"),
        (lambda: pytorch3d.ball_query(whole, x), f"ball_query: p1 {floats}"),
    ]:
        with pytest.raises((RuntimeError, IndexError)) as caught:
            call()
        assert str(caught.value).startswith(text)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda x: points.farthest_point_sample(x[0, 0], 2),
            r"points must be 3-dimensional, \(B, N",
        ),
        (lambda x: points.farthest_point_sample(x, 2), r"points must be 3-dimensional, \(B, N"),
        (lambda x: points.farthest_point_sample(x[0], 2), r"points must be 3-dimensional, \(B, N"),
        (
            lambda x: points.farthest_point_sample(x, 2, offsets=torch.tensor(3, device=x.device)),
            r"offsets must have shape \(B \+ 1,\); got \(\)",
        ),
        (
            lambda x: points.farthest_point_sample(x[0], 2, offsets=x[0].long()),
            r"points must be 2-dimensional, \(P, D\); got shape \(3,\)",
        ),
    ],
)
def test_clouds_of_other_ranks(device, call, text):
    with pytest.raises(RuntimeError, match=f"^farthest_point_sample: {text}"):
        call(torch.rand(8, 3, device=device))


def test_torch_cluster_cannot_be_scripted():
    """As its docstring says; those whose models are no TorchScript either say nothing."""
    assert "torch.jit.script" in torch_cluster.__doc__
    with pytest.raises(RuntimeError):
        torch.jit.script(torch_cluster.knn)
