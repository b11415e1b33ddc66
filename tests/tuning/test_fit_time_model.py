"""The time model's constants: their header is what the script writes from the sweeps."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest

from fusedops import _C

np = pytest.importorskip("numpy")
ROOT = Path(__file__).resolve().parents[2]
SMS = 132
if not shutil.which("c++"):
    pytest.skip("the formulas of csrc are compiled", allow_module_level=True)


def load_script():
    path = ROOT / "perf/gemm/fit_time_model.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


fitting = load_script()


@pytest.fixture(scope="module")
def products():
    return fitting.read_products(fitting.SWEEPS, SMS)


@pytest.fixture(scope="module")
def model(products):
    return fitting.Model(products, SMS)


def test_the_header_is_what_the_script_writes(model):
    text = fitting.HEADER.read_text()
    written = fitting.render(text, fitting.read_header(), model, "perf/results/h200")
    assert written == text


def test_every_constant_is_used_and_every_exception_exists():
    names = set(fitting.read_header())
    code = "".join(path.read_text() for path in fitting.SELECT.rglob("*.cpp"))
    assert {name for name in names if not re.search(rf"\b{name}\b", code)} == set()
    assert names > fitting.NOT_FITTED


def test_the_formulas_are_those_of_selection(model, products):
    expected = model.predict(fitting.read_header())
    for i in range(0, len(products), 50):
        product = products[i]
        a, b, epilogue, activation = fitting.arguments_of(product.problem)
        options = {"epilogue": epilogue, "a_major": a, "b_major": b, "activation": activation}
        _, candidates = _C.select_config(*product.problem[:3], **options, sm_count=SMS)
        ours = [candidates[position]["expected_us"] for position in product.candidates]
        np.testing.assert_allclose(expected[model.starts[i] : model.starts[i + 1]], ours, 1e-12)


def test_losses_are_those_of_the_choice(model):
    assert (model.losses(model.us) == 0).all()
    assert model.losses(-model.us).mean() > 0.3


def test_a_fit_finds_what_a_wrong_constant_loses(products):
    few = products[::40]
    model = fitting.Model(few, SMS)
    everything = np.ones(len(few), dtype=bool)
    right = fitting.read_header()
    wrong = right | {"kL2BytesPerCycle": 40.0, "kReduceUs": 1.0}
    refit = fitting.fit(model, wrong, everything)
    loss = {name: model.objective(model.predict(values)).mean() for name, values in
            (("right", right), ("wrong", wrong), ("refit", refit))}  # fmt: skip
    assert loss["refit"] < loss["right"] * 1.1 < loss["wrong"]
    assert all(refit[name] == wrong[name] for name in fitting.NOT_FITTED)


def test_a_shape_is_held_out_in_all_its_layouts(products):
    sides = {}
    for product in products:
        sides.setdefault(tuple(sorted(product.problem[:3])), set()).add(product.held_out)
    assert all(len(side) == 1 for side in sides.values())
    share = sum(product.held_out for product in products) / len(products)
    assert 0.1 < share < 0.3
