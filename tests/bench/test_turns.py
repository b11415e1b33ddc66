"""Turns: processes that prepare side by side and measure alone."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import time

import pytest

from fusedops.bench.report import results
from fusedops.bench.turns import Turns


def is_free(path):
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.fixture
def path(tmp_path):
    return tmp_path / "turns"


def held_by(turns, kind):
    return turns.alone() if kind == "alone" else turns.beside_others()


kinds = pytest.mark.parametrize("kind", ["alone", "beside others"])


@kinds
def test_a_turn_ends_with_what_it_is_for(path, kind):
    with held_by(Turns(path), kind):
        assert not is_free(path)
    assert is_free(path)
    with pytest.raises(ValueError, match="wrong"), held_by(Turns(path), kind):
        raise ValueError("wrong")
    assert is_free(path)


def test_preparing_keeps_nobody_from_preparing(path):
    with Turns(path).beside_others(), Turns(path).beside_others():
        assert not is_free(path)


@kinds
def test_a_process_that_was_forked_meanwhile_does_not_keep_it(path, kind):
    with held_by(Turns(path), kind):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
    try:
        assert is_free(path)
    finally:
        child.kill()
        child.join()


def _die_holding(path, ready):
    with Turns(path).alone():
        ready.set()
        time.sleep(60)


def test_a_process_that_dies_gives_its_turn_back(path):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    child = context.Process(target=_die_holding, args=(path, ready))
    child.start()
    assert ready.wait(30)
    assert not is_free(path)
    os.kill(child.pid, 9)
    child.join()
    assert is_free(path)


def test_without_a_file_nobody_waits():
    with Turns().alone(), Turns().alone():
        pass


def _merge_rows(path, name, start):
    start.wait()
    for case in range(40):
        row = dict.fromkeys(results.COLUMNS, "1") | {"suite": name, "case": str(case)}
        results.merge_rows(path, [row])


def test_processes_that_merge_into_one_file_keep_all_rows(tmp_path):
    context = multiprocessing.get_context("fork")
    start, path = context.Barrier(3), tmp_path / "new" / "models.csv"
    children = [
        context.Process(target=_merge_rows, args=(path, name, start)) for name in ("a", "b", "c")
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert len(path.read_text().splitlines()) == 1 + 3 * 40
