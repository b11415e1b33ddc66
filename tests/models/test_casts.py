"""Weights that autocast casts before the layers of a model ask for them."""

from __future__ import annotations

import contextlib

import pytest
import torch

import fusedops.models.pointnet2 as pointnet2
from fusedops._autograd import autocast
from fusedops.models import PointNet2Classifier, PointNet2Segmenter
from fusedops.models.casts import foldable, weights_cast_ahead
from fusedops.points import _edge_input
from fusedops.points._edge_input import folded, folds_ahead
from util import generator

HALF = torch.bfloat16


def classifier(device):
    torch.manual_seed(0)
    return PointNet2Classifier(5).to(device).eval(), (clouds(device),)


def segmenter(device):
    torch.manual_seed(0)
    model = PointNet2Segmenter(4, variant="msg", num_categories=3).to(device).eval()
    return model, (clouds(device), None, torch.tensor([0, 2], device=device))


def clouds(device):
    return torch.rand(2, 600, 3, generator=generator("cpu")).to(device)


@pytest.mark.parametrize("make", [classifier, segmenter])
def test_results_are_those_of_casts_in_the_layers(device, make, monkeypatch):
    model, inputs = make(device)
    with torch.no_grad(), torch.autocast(device, HALF):
        ahead = model(*inputs)
        monkeypatch.setattr(pointnet2, "weights_cast_ahead", lambda *_: contextlib.nullcontext())
        assert torch.equal(ahead, model(*inputs))


def test_layers_have_their_weights_cast(device):
    model, (xyz,) = classifier(device)
    weights = [layer.weight for layer in model.stages[0].scales[0].linears]
    weights.append(model.head.layers[0].linears[0].weight)
    with torch.no_grad(), torch.autocast(device, HALF):
        with weights_cast_ahead(model, xyz):
            assert all(autocast.is_cast_ahead(weight, HALF) for weight in weights)
            assert not autocast.is_cast_ahead(weights[0], torch.float16)
            kept = autocast.cast_weight(weights[0], HALF)
            assert kept is autocast.cast_weight(weights[0], HALF)
            weights[0].add_(1)  # a cast of what was there before is of no use
            assert not autocast.is_cast_ahead(weights[0], HALF)
            assert torch.equal(autocast.cast_weight(weights[0], HALF), weights[0].to(HALF))
        assert not any(autocast.is_cast_ahead(weight, HALF) for weight in weights)


def test_nothing_is_cast_ahead_in_training_or_without_autocast(device):
    model, (xyz,) = classifier(device)
    weight = model.stages[0].scales[0].linears[0].weight
    with torch.autocast(device, HALF), weights_cast_ahead(model, xyz):
        assert not autocast.is_cast_ahead(weight, HALF)
    with torch.no_grad(), weights_cast_ahead(model, xyz):
        assert not autocast.is_cast_ahead(weight, HALF)


def test_a_region_casts_once(device):
    model, (xyz,) = classifier(device)
    weight, casts = model.stages[0].scales[0].linears[0].weight, []
    with torch.no_grad(), torch.autocast(device, HALF):
        for _ in range(2):
            with weights_cast_ahead(model, xyz):
                casts.append(autocast.cast_weight(weight, HALF))
    assert casts[0] is casts[1]


def test_norms_are_folded_ahead(monkeypatch):
    """Those of the layers that run over rows: what a layer asks for, as long as it is the same."""
    model, _ = classifier("cpu")
    casts = {id(weight): weight.to(HALF) for weight in model.parameters()}
    layers = foldable(model, casts)
    shapes = [tuple(layer.weight.shape) for layer in layers]
    assert shapes == [(512, 256), (1024, 512), (512, 1024), (256, 512)]
    asked = []

    class Ops:
        @staticmethod
        def edge_rows_fold(weight, *_):
            asked.append(weight)
            return weight + len(asked), weight[:, 0]

    def asks(layer):
        before = len(asked)
        folded(layer)
        return len(asked) > before

    monkeypatch.setattr(_edge_input, "_ops", Ops)
    with folds_ahead(layers):
        assert len(asked) == len(layers)
        assert torch.equal(folded(layers[1]).weight, layers[1].weight + 2)
        assert not any(map(asks, layers))
        norm = layers[0].norm
        assert asks(layers[0]._replace(norm=norm._replace(eps=0.5)))
        assert asks(layers[0]._replace(norm=norm._replace(weight=norm.weight.clone())))
        assert asks(layers[0]._replace(weight=layers[0].weight.clone()))
        norm.running_var.add_(1)
        assert asks(layers[0])
        assert not asks(layers[1])
    assert asks(layers[1])


def test_layers_that_train_or_have_hooks_are_not_folded(device):
    model, _ = classifier(device)
    casts = {id(weight): weight.to(HALF) for weight in model.parameters()}
    model.head.layers[0].norms[0].train()
    model.all_points.mlp.linears[1].register_forward_hook(lambda *_: None)
    assert [tuple(layer.weight.shape) for layer in foldable(model, casts)] == [(256, 512)]
    assert foldable(model, {}) == []


def test_a_model_made_for_inference(device):
    with torch.inference_mode(), torch.autocast(device, HALF):
        model, inputs = classifier(device)
        out = model(*inputs)
    assert out.shape == (2, 5)
    assert not out.isnan().any()
