"""State dicts of other repositories: outputs, statistics and gradients are those of their models.

The other models are rewritten in plain torch (twins.py), with the names of their parameters.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from fusedops import models
from fusedops.models import Segmentation, Stage
from models.twin_ops import shuffle_norms
from models.twin_pointnext import PointNeXtTwin
from models.twin_segment import PartDGCNN, PointNeXtScenes
from models.twins import WangDGCNN, WijmansClassifier, WijmansSegmenter, YanClassifier, YanSegmenter

B, N, CLASSES = 3, 40, 5
ONE = [(16, (0.5,), (8,), ((6, 10),)), (6, (0.9,), (5,), ((12, 14),))]
SEVERAL = [
    (16, (0.4, 0.7), (4, 8), ((6, 10), (4, 7))),
    (6, (0.6, 1.0), (4, 5), ((8, 9), (5, 6))),
]
ALL = (16, 20)
HEAD = (12, 9)
PROPAGATIONS = ((10, 9), (11,), (12,))
YAN = {"bias": True, "closed": True}


def stages(rows):
    return tuple(Stage(*row) for row in rows)


def wijmans_classifier(rows):
    theirs = WijmansClassifier(CLASSES, 2, rows, ALL, HEAD)
    ours = models.PointNet2Classifier(
        CLASSES, 2, stages=stages(rows), all_points=ALL, head=HEAD, dropout=(0, 0)
    )
    return theirs, ours, models.load_erikwijmans, models.to_erikwijmans, (2,)


def wijmans_segmenter(rows, channels):
    theirs = WijmansSegmenter(CLASSES, channels, rows, PROPAGATIONS[:2])
    config = Segmentation(stages(rows), None, PROPAGATIONS[:2], "known_first", 1, False)
    ours = models.PointNet2Segmenter(CLASSES, channels, config=config, head=(9,), dropout=(0,))
    return theirs, ours, models.load_erikwijmans, models.to_erikwijmans, (channels,)


def yan_classifier(rows):
    theirs = YanClassifier(CLASSES, rows, ALL, HEAD)
    ours = models.PointNet2Classifier(
        CLASSES, 3, stages=stages(rows), all_points=ALL, head=HEAD, dropout=(0, 0), **YAN
    )
    return theirs, ours, models.load_yanx27, models.to_yanx27, (3,)


def yan_segmenter(rows):
    theirs = YanSegmenter(CLASSES, 4, rows, ALL, PROPAGATIONS, 8)
    config = Segmentation(stages(rows), ALL, PROPAGATIONS, "skip_first", 2, True)
    ours = models.PointNet2Segmenter(
        CLASSES, 3, config=config, num_categories=4, head=(8,), dropout=(0,), **YAN
    )
    return theirs, ours, models.load_yanx27, models.to_yanx27, (3, "category")


def wang_dgcnn():
    widths = (6, 7, 8)
    theirs = WangDGCNN(CLASSES, widths, 6, 16, HEAD)
    ours = models.DGCNN(
        CLASSES, mlps=[[w] for w in widths], k=6, embedding=16, head=HEAD, dropout=(0, 0)
    )
    return theirs, ours, models.load_dgcnn, models.to_dgcnn, ()


def pointnext(small):
    layers, residual = (2, True) if small else (1, False)
    blocks = (1, 1) if small else (2, 3)
    theirs = PointNeXtTwin(CLASSES, 2, 6, blocks, layers, residual, 0.4, 6, (8,))
    ours = models.PointNeXt(
        CLASSES, 2, width=6, blocks=blocks, strides=(2, 2), sa_layers=layers, residual=residual,
        radius=0.4, k=6, head=(8,), dropout=(0,),
    )  # fmt: skip
    return theirs, ours, models.load_openpoints, models.to_openpoints, (2,)


def part_dgcnn():
    theirs = PartDGCNN(CLASSES, 4, 6, 7, 16, (11, 10, 9), ((5, 6), 12, (8, 7)))
    ours = models.DGCNNSegmenter(
        CLASSES, num_categories=4, mlps=[(7, 7), (7, 7), (7,)], k=6, embedding=16, category=7,
        head=(11, 10, 9), dropout=(0, 0, 0),
    )  # fmt: skip
    ours.transform = models.PointTransform(
        3, (5, 6), 6, 12, (8, 7), activation="leaky_relu", negative_slope=0.2
    )
    return theirs, ours, models.load_dgcnn, models.to_dgcnn, ("category",)


def pointnext_scenes(small):
    layers, residual = (2, True) if small else (1, False)
    blocks = (1, 1) if small else (2, 3)
    theirs = PointNeXtScenes(CLASSES, 2, 6, blocks, 2, layers, residual, 0.3, 6)
    ours = models.PointNeXtSegmenter(
        CLASSES, 2, xyz_features=False, width=6, blocks=blocks, strides=(2, 2), sa_layers=layers,
        residual=residual, radius=0.3, k=6, dropout=0.0,
    )  # fmt: skip
    return theirs, ours, models.load_openpoints, models.to_openpoints, (2,)


PAIRS = {
    "wijmans_ssg": lambda: wijmans_classifier(ONE),
    "wijmans_msg": lambda: wijmans_classifier(SEVERAL),
    "wijmans_scene_ssg": lambda: wijmans_segmenter(ONE, 2),
    "wijmans_scene_msg": lambda: wijmans_segmenter(SEVERAL, 0),
    "yan_ssg": lambda: yan_classifier(ONE),
    "yan_msg": lambda: yan_classifier(SEVERAL),
    "yan_part_ssg": lambda: yan_segmenter(ONE),
    "yan_part_msg": lambda: yan_segmenter(SEVERAL),
    "dgcnn": wang_dgcnn,
    "pointnext_small": lambda: pointnext(True),
    "pointnext_blocks": lambda: pointnext(False),
    "parts_dgcnn": part_dgcnn,
    "pointnext_scenes_small": lambda: pointnext_scenes(True),
    "pointnext_scenes_blocks": lambda: pointnext_scenes(False),
}
every_pair = pytest.mark.parametrize("name", PAIRS)


def pair(name, device="cpu"):
    """Their model with norms of its own, ours with its state, the functions, and inputs."""
    torch.manual_seed(1)
    theirs, ours, load, to, extra = PAIRS[name]()
    shuffle_norms(theirs).to(device, torch.float64)
    ours.to(device, torch.float64)
    load(ours, theirs.state_dict())
    inputs = [torch.rand(B, N, 3, dtype=torch.float64, device=device)]
    for one in extra:
        if one == "category":
            inputs.append(torch.arange(B, device=device))
        elif one:
            inputs.append(torch.randn(B, N, one, dtype=torch.float64, device=device))
    return theirs, ours, to, inputs


def _theirs(name, inputs):
    """DGCNN's layout is (B, C, N) from the start."""
    return [inputs[0].transpose(1, 2)] if name == "dgcnn" else inputs


def same(got, want, at=""):
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9, msg=lambda m: f"{at}: {m}")


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@every_pair
def test_outputs_statistics_and_gradients(device, name, training):
    theirs, ours, to, inputs = pair(name, device)
    theirs.train(training)
    ours.train(training)
    inputs = [x.requires_grad_() if x.is_floating_point() else x for x in inputs]
    want, got = theirs(*_theirs(name, inputs)), ours(*inputs)
    if name.startswith("yan"):
        got = F.log_softmax(got, -1)
    same(got, want)

    for key, value in to(ours).items():
        same(value, theirs.state_dict()[key], key)

    weight = torch.randn_like(want)
    leaves = [x for x in inputs if x.is_floating_point()]
    grads = []
    for y in (want, got):
        (y * weight).sum().backward()
        grads.append([x.grad for x in leaves])
        for x in leaves:
            x.grad = None
    for a, b in zip(*grads, strict=True):
        same(b, a)
    # Our gradients under their names.
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(parameter.grad)
    found = to(ours)
    for key, parameter in theirs.named_parameters():
        same(found[key], parameter.grad, key)


@every_pair
def test_what_is_written_is_what_was_read(name):
    theirs, ours, to, _ = pair(name)
    found, want = to(ours), theirs.state_dict()
    assert found.keys() == want.keys()
    for key, value in want.items():
        assert torch.equal(found[key], value), key
    theirs.load_state_dict(found)


def old_wijmans(state):
    """The names before the modules were plain Sequentials."""
    renamed = {}
    for key, value in state.items():
        parts = key.split(".")
        if parts[0] == "fc_layer":
            at = {"0": "0.fc", "1": "0.normlayer.bn", "3": "2.fc"}
            at |= {"4": "2.normlayer.bn", "7": "4.fc"}
            new = ["FC_layer", at[parts[1]], *parts[2:]]
        elif parts[0] == "fc_lyaer":
            at = {"0": "0.conv", "1": "0.normlayer.bn", "4": "2.conv"}
            new = ["FC_layer", at[parts[1]], *parts[2:]]
        else:
            place = 4 if parts[0] == "SA_modules" else 3
            layer, kind = divmod(int(parts[place]), 3)
            middle = [f"layer{layer}", "conv" if kind == 0 else "bn.bn"]
            new = [*parts[:place], *middle, *parts[place + 1 :]]
        renamed[".".join(new)] = value
    return renamed


@pytest.mark.parametrize("name", ["wijmans_msg", "wijmans_scene_ssg"])
def test_older_names_and_wrappers(name):
    theirs, ours, to, _ = pair(name)
    want = to(ours)
    state = {f"module.{key}": value for key, value in old_wijmans(theirs.state_dict()).items()}
    state = {key: value for key, value in state.items() if "num_batches" not in key}
    blank = copy.deepcopy(ours)
    for parameter in blank.parameters():
        parameter.data.zero_()
    models.load_erikwijmans(blank, state)
    for key, value in to(blank).items():
        assert torch.equal(value, want[key]), key


def test_errors():
    theirs, ours, *_ = pair("yan_ssg")
    state = theirs.state_dict()
    with pytest.raises(TypeError, match="model must be a DGCNN or DGCNNSegmenter; got PointN"):
        models.load_dgcnn(ours, state)
    del state["fc1.weight"]
    state["extra"] = torch.zeros(1)
    with pytest.raises(ValueError, match=r"missing fc1\.weight, unexpected extra"):
        models.load_yanx27(ours, state)
    state = theirs.state_dict()
    state["fc1.weight"] = torch.zeros(3, 4)
    with pytest.raises(ValueError, match=r"fc1\.weight must have shape \(12, 20\); got \(3, 4\)"):
        models.load_yanx27(ours, state)
    before = copy.deepcopy(ours.state_dict())
    with pytest.raises(ValueError, match="must have the names of the model"):
        models.load_erikwijmans(ours, theirs.state_dict())
    for key, value in ours.state_dict().items():
        assert torch.equal(value, before[key]), key
