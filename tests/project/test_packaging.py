"""The Dockerfile and the conda recipe name files and versions that are those of the project."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
RECIPE = (ROOT / "packaging/conda/recipe.yaml").read_text()
PROJECT = (ROOT / "pyproject.toml").read_text()


def copied() -> list[str]:
    """What the image takes from the checkout."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
    return [name for line in lines for name in line.split()[:-1]]


def test_the_image_takes_files_that_exist_and_are_sent() -> None:
    sent = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert len(copied()) >= 8
    for name in copied():
        assert (ROOT / name).exists(), name
        assert name.split("/")[0] in sent, name


def test_the_image_takes_what_a_wheel_is_made_of() -> None:
    named = re.findall(r'"([\w./]+)"', re.search(r"license-files = .*", PROJECT)[0])
    named += re.findall(r'^readme = "(.+)"', PROJECT, re.MULTILINE)
    named += ["CMakeLists.txt", "pyproject.toml", "cmake", "csrc", "python"]
    assert {*named} <= {*copied()}


def test_versions_are_those_of_the_project() -> None:
    bootstrap = (ROOT / "scripts/bootstrap").read_text()
    torch = re.search(r"'(torch==[\d.*]+)'", bootstrap)[1]
    assert DOCKERFILE.count(f'ARG TORCH="{torch}"') == 2
    cutlass = re.search(r"nvidia-cutlass==[\d.]+", bootstrap)[0]
    assert cutlass in DOCKERFILE
    assert cutlass in RECIPE
    needs = re.search(r"requires = \[(.*)\]", PROJECT)[1]
    for package, version in re.findall(r'"([\w-]+)(>=[\d.]+)"', needs):
        if package != "torch":
            assert f'"{package}{version}"' in DOCKERFILE, package
        conda = "pytorch" if package == "torch" else package
        assert f"    - {conda} {version}\n" in RECIPE, package


def test_the_recipe_is_of_this_package() -> None:
    def field(name: str) -> str:
        return re.search(rf'^{name} = "(.+)"$', PROJECT, re.MULTILINE)[1]

    assert f"  version: {field('version')}\n" in RECIPE
    assert f'summary: "{field("description")}"' in RECIPE
    assert f"    - python {field('requires-python')}\n" in RECIPE
    assert f"fusedops = {field('fusedops')}" in RECIPE
    assert field("license") in RECIPE
