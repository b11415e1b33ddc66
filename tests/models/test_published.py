"""The models with their published hyper-parameters: widths, names, and parameters of others."""

from __future__ import annotations

import pytest
import torch

from fusedops import models
from models import twins
from models.twin_pointnext import PointNeXtTwin

WIDTHS = ((32, 32, 64), (64, 64, 128), (64, 96, 128))
LAST = (256, 512, 1024)
FIRST, SECOND = (512, (0.2,), (32,), ((64, 64, 128),)), (128, (0.4,), (64,), ((128, 128, 256),))
SSG = [FIRST, SECOND]
SSG64 = [(*FIRST[:2], (64,), FIRST[3]), SECOND]
MSG = [
    (512, (0.1, 0.2, 0.4), (16, 32, 128), WIDTHS),
    (128, (0.2, 0.4, 0.8), (32, 64, 128), ((64, 64, 128), (128, 128, 256), (128, 128, 256))),
]
PART_MSG = [
    (512, (0.1, 0.2, 0.4), (32, 64, 128), WIDTHS),
    (128, (0.4, 0.8), (64, 128), ((128, 128, 256), (128, 196, 256))),
]
SCENE_SSG = [
    (1024, (0.1,), (32,), ((32, 32, 64),)),
    (256, (0.2,), (32,), ((64, 64, 128),)),
    (64, (0.4,), (32,), ((128, 128, 256),)),
    (16, (0.8,), (32,), ((256, 256, 512),)),
]
SCENE_MSG = [
    (1024, (0.05, 0.1), (16, 32), ((16, 16, 32), (32, 32, 64))),
    (256, (0.1, 0.2), (16, 32), ((64, 64, 128), (64, 96, 128))),
    (64, (0.2, 0.4), (16, 32), ((128, 196, 256), (128, 196, 256))),
    (16, (0.4, 0.8), (16, 32), ((256, 256, 512), (256, 384, 512))),
]
DECODER = ((128, 128, 128), (256, 128), (256, 256))
SCENE_DECODERS = [((128, 128, 128), (256, 128), (256, 256), (256, 256)),
                  ((128, 128), (256, 256), (512, 512), (512, 512))]  # fmt: skip
CLASSIFIER, SEGMENTER = models.PointNet2Classifier, models.PointNet2Segmenter

CASES = {
    "yan_ssg": (
        lambda: CLASSIFIER(40, 3, bias=True, dropout=(0.4, 0.4)),
        lambda: twins.YanClassifier(40, SSG, LAST, (512, 256)),
        models.to_yanx27,
        SSG,
    ),
    "yan_msg": (
        lambda: CLASSIFIER(40, 3, "msg", bias=True, dropout=(0.4, 0.5)),
        lambda: twins.YanClassifier(40, MSG, LAST, (512, 256)),
        models.to_yanx27,
        MSG,
    ),
    "yan_part_ssg": (
        lambda: SEGMENTER(50, 3, num_categories=16, bias=True),
        lambda: twins.YanSegmenter(50, 16, SSG, LAST, DECODER, 128),
        models.to_yanx27,
        SSG,
    ),
    "yan_part_msg": (
        lambda: SEGMENTER(50, 3, "msg", num_categories=16, bias=True),
        lambda: twins.YanSegmenter(50, 16, PART_MSG, LAST, ((128, 128), *DECODER[1:]), 128),
        models.to_yanx27,
        PART_MSG,
    ),
    "wijmans_ssg": (
        lambda: CLASSIFIER(40, 3, "ssg64"),
        lambda: twins.WijmansClassifier(40, 3, SSG64, LAST, (512, 256)),
        models.to_erikwijmans,
        SSG64,
    ),
    "wijmans_msg": (
        lambda: CLASSIFIER(40, 3, "msg"),
        lambda: twins.WijmansClassifier(40, 3, MSG, LAST, (512, 256)),
        models.to_erikwijmans,
        MSG,
    ),
    "wijmans_scene_ssg": (
        lambda: SEGMENTER(13, 6, "scene_ssg"),
        lambda: twins.WijmansSegmenter(13, 6, SCENE_SSG, SCENE_DECODERS[0]),
        models.to_erikwijmans,
        SCENE_SSG,
    ),
    "wijmans_scene_msg": (
        lambda: SEGMENTER(13, 6, "scene_msg"),
        lambda: twins.WijmansSegmenter(13, 6, SCENE_MSG, SCENE_DECODERS[1]),
        models.to_erikwijmans,
        SCENE_MSG,
    ),
    "pointnext": (
        lambda: models.PointNeXt(40),
        lambda: PointNeXtTwin(40, 0, 32, (1, 1, 1, 1), 2, True, 0.15, 32, (512, 256)),
        models.to_openpoints,
        None,
    ),
    "dgcnn": (
        lambda: models.DGCNN(40),
        lambda: twins.WangDGCNN(40, (64, 64, 128, 256), 20, 1024, (512, 256)),
        models.to_dgcnn,
        None,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_published_models(name):
    make, twin, to, stages = CASES[name]
    with torch.device("meta"):
        ours, theirs = make(), twin()
    shapes = {key: tuple(value.shape) for key, value in to(ours).items()}
    assert shapes == {key: tuple(value.shape) for key, value in theirs.state_dict().items()}
    if stages is not None:
        found = [(s.num_points, tuple(s.radii), tuple(s.ks)) for s in ours.stages]
        assert found == [stage[:3] for stage in stages]
        assert ours.all_points is None or ours.all_points.mlp.linears[-1].out_features == 1024


def count(model):
    return sum(p.numel() for p in model.parameters())


def test_segmenters():
    """PointNeXt of S3DIS: 0.8, 3.8, 7.1 and 41.6 million parameters, as published; radii double."""
    features = {"in_channels": 4, "xyz_features": False}
    small = models.PointNeXtSegmenter(13, **features)
    assert round(count(small) / 1e6, 1) == 0.8
    assert [stage[0].abstraction.radii for stage in small.stages] == [[0.1], [0.2], [0.4], [0.8]]
    for blocks, width, millions in (
        ((2, 3, 2, 2), 32, 3.8), ((3, 5, 3, 3), 32, 7.1), ((4, 7, 4, 4), 64, 41.6)
    ):  # fmt: skip
        model = models.PointNeXtSegmenter(
            13, **features, sa_layers=1, residual=False, blocks=blocks, width=width
        )
        assert round(count(model) / 1e6, 1) == millions
    parts = models.DGCNNSegmenter(50)
    assert {edge.k for edge in parts.edges} == {40}
    assert parts.mixed.mlp.linears[0].in_features == 1280
    assert parts.head.last.bias is None


def test_pointnext_small():
    """1.4 million parameters, as published; radii 0.15 times 1.5 a stage."""
    with torch.device("meta"):
        model = models.PointNeXt(40)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == 1.4
    layers = [stage[0].abstraction for stage in model.stages]
    assert [layer.radii[0] for layer in layers] == pytest.approx([0.15, 0.225, 0.3375, 0.50625])
    assert {layer.ks[0] for layer in layers} == {32}
    widths = [[linear.out_features for linear in layer.scales[0].linears] for layer in layers]
    assert widths == [[32, 64], [64, 128], [128, 256], [256, 512]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CLASSIFIER(4, variant="big"), "variant must be one of 'ssg', 'ssg64', 'msg'"),
        (lambda: SEGMENTER(4, variant="big"), "variant must be one of 'ssg', 'msg', 'scene_ssg'"),
        (lambda: models.DGCNN(4, pools=("sum",)), "pools must be of 'max' and 'mean'"),
        (lambda: models.PointNeXt(4, blocks=(1,)), r"a value for each of blocks \(1\); got 4"),
        (lambda: CLASSIFIER(4, dropout=(0.5,)), r"dropout must have 2 value\(s\); got 1"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_category_is_asked_for():
    model = SEGMENTER(4, num_categories=3)
    with pytest.raises(ValueError, match="category must be a Tensor; got None"):
        model(torch.rand(1, 8, 3))
