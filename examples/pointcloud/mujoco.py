"""Objects of MuJoCo's XML with their meshes: those that the package metaworld ships.

metaworld 3.1.1 (MIT) has about forty household objects, from 131 STL files of CAD models and a few
primitive bodies: `pip install --no-deps metaworld==3.1.1` (37 MB; nothing of it is imported). An
object is a tree of bodies; its joints are put at random within their range, so that doors, drawers
and lids stand open at all angles. Bodies for collisions are left out.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import torch
from torch import Generator, Tensor

from .errors import failure, reading
from .surfaces import Surface, box, capsule, cylinder, mesh, moved, one, sphere

if TYPE_CHECKING:
    from collections.abc import Callable
    from xml.etree.ElementTree import Element

INSTALL = "pip install --no-deps metaworld==3.1.1"
SCENES, ROOM = "assets/objects", "../scene/basic_scene.xml"
# The same objects in another place or colour, single primitives, and the robot.
LEFT_OUT = ("binB", "doorlockB", "block", "block_cyl", "boxtop", "objA", "wall", "xyz_base", "plug",
            "peg_insert", "sphere", "table_hole")  # fmt: skip
# What reading of one that is none ends in: no XML, names that are missing, numbers that are none.
_NO_SCENE = (ElementTree.ParseError, KeyError, ValueError, IndexError, RuntimeError)


def find_objects(folder: Path | None) -> dict[str, Callable[[Generator], list[Surface]]]:
    """Name to what draws the surfaces of one in a random pose; of the folder of the package."""
    if folder is None:
        found = importlib.util.find_spec("metaworld")
        if found is None or not found.submodule_search_locations:
            raise failure(f"metaworld is not installed: {INSTALL}")
        folder = Path(next(iter(found.submodule_search_locations)))
    scenes = [path for path in sorted((folder / SCENES).glob("*.xml")) if path.stem not in LEFT_OUT]
    if not scenes:
        raise failure(f"no objects in {folder / SCENES}: {INSTALL}")
    return {path.stem: _object(path) for path in scenes}


def _object(scene: Path) -> Callable[[Generator], list[Surface]]:
    """The bodies of a scene, with the meshes that its includes name."""
    with reading(scene, "scene of MuJoCo", *_NO_SCENE):
        root = _with_includes(ElementTree.parse(scene).getroot(), scene.parent)
        meshes = {}
        for element in root.iter("mesh"):
            file = scene.parent / element.attrib["file"].replace("\\", "/")
            meshes[element.get("name", file.stem)] = file.resolve()
        (world,) = root.findall("worldbody")

    def draw(g: Generator) -> list[Surface]:
        with reading(scene, "scene of MuJoCo", *_NO_SCENE):
            return _body(world, meshes, torch.eye(3), torch.zeros(3), g)

    return draw


def _with_includes(element: Element, folder: Path) -> Element:
    """With the children of included files in the place of an include; without the room around."""
    children = []
    for child in list(element):
        if child.tag != "include":
            children.append(_with_includes(child, folder))
        elif (file := child.attrib["file"].replace("\\", "/")) != ROOM:
            with reading(folder / file, "scene of MuJoCo", *_NO_SCENE):
                children += list(ElementTree.parse(folder / file).getroot())
    element[:] = children
    return element


def read_stl(path: Path) -> Tensor:
    """(T, 3, 3) of a binary STL: a header of 80 bytes, a count, 50 bytes a triangle."""
    with reading(path, "binary STL"):
        content = bytearray(path.read_bytes())
    if len(content) < 84 or len(content) != 84 + 50 * int.from_bytes(content[80:84], "little"):
        raise failure(f"{path} is no binary STL")
    data = torch.frombuffer(content, dtype=torch.uint8)
    count = (len(content) - 84) // 50
    corners = data[84:].view(count, 50)[:, 12:48].reshape(-1)  # behind a normal's 12 bytes
    return corners.view(torch.float32).view(count, 3, 3)


def _body(
    body: Element, meshes: dict[str, Path], turn: Tensor, shift: Tensor, g: Generator
) -> list[Surface]:
    """All visible surfaces of a body and those in it, with the joints at random."""
    shift = shift + turn @ _vector(body, "pos")
    turn = turn @ _rotation(body)
    for joint in body.findall("joint"):
        low, high = _vector(joint, "range", 2).tolist()
        axis = torch.nn.functional.normalize(_vector(joint, "axis", default=(0, 0, 1)), dim=0)
        value = one(g, low, high)
        if joint.get("type", "hinge") == "slide":
            shift = shift + turn @ (value * axis)
        else:
            about = _vector(joint, "pos")
            hinge = _turned(axis * value)
            shift = shift + turn @ (about - hinge @ about)
            turn = turn @ hinge
    found = []
    for geom in body.findall("geom"):
        if _visible(geom):
            place = shift + turn @ _vector(geom, "pos")
            found += [moved(s, place, turn @ _rotation(geom)) for s in _surfaces(geom, meshes)]
    for child in body.findall("body"):
        found += _body(child, meshes, turn, shift, g)
    return found


def _visible(geom: Element) -> bool:
    collides = geom.get("class", "").endswith("col") or geom.get("group") == "4"
    return not collides and geom.get("rgba", "1").split()[-1] != "0"


def _surfaces(geom: Element, meshes: dict[str, Path]) -> list[Surface]:
    kind = geom.get("type", "mesh" if "mesh" in geom.attrib else "sphere")
    if kind == "mesh":
        return [_mesh(meshes[geom.attrib["mesh"]])]
    size = _vector(geom, "size", len(geom.get("size", "0").split())).tolist()
    if kind == "box":
        return [box(*size)]
    if kind == "sphere":
        return [sphere(size[0])]
    if kind == "cylinder":
        return cylinder(*size[:2])  # some have a third number, which MuJoCo ignores
    if kind == "capsule":
        return capsule(*size[:2])
    raise failure(f"a body of type {kind!r} is not known")


@functools.cache
def _mesh(path: Path) -> Surface:
    return mesh(read_stl(path))


def _vector(
    element: Element, name: str, size: int = 3, default: tuple[float, ...] = (0, 0, 0)
) -> Tensor:
    text = element.get(name)
    values = default[:size] if text is None else tuple(map(float, text.split()))
    return torch.tensor(values, dtype=torch.float32)


def _rotation(element: Element) -> Tensor:
    """From Euler angles (radian, about the turned axes x, y, z) or a quaternion (w, x, y, z)."""
    if "quat" in element.attrib:
        w, *xyz = torch.nn.functional.normalize(_vector(element, "quat", 4), dim=0)
        axis = torch.stack(xyz)
        return _turned(2 * torch.atan2(axis.norm(), w) * axis / axis.norm().clamp_min(1e-12))
    turn = torch.eye(3)
    for angle, axis in zip(_vector(element, "euler"), torch.eye(3), strict=True):
        turn = turn @ _turned(angle * axis)
    return turn


def _turned(vector: Tensor) -> Tensor:
    """The matrix that turns about a vector by its length."""
    x, y, z = vector.tolist()
    return torch.linalg.matrix_exp(torch.tensor([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]]))
