#!/usr/bin/env bash
# Issue 32, users: run in the repository root with the built module on the path (PYTHONPATH=python or installed), python3.
# About 4 minutes. Expected last lines: "all 16 right", "0 failed", and pytest without failures.
# Writes the logs to $OUT (fuzz_*.log, check.json, pytest_users.log).
set -u
OUT=${OUT:-/tmp/users_out}; mkdir -p "$OUT"
export FUSEDOPS_CACHE_DIR=/tmp/fusedops-users-cache
python3 -m fusedops check | tee "$OUT/check.txt"                      # < 60 s
python3 -m fusedops info --json > "$OUT/info.json"
timeout 100 python3 scripts/fuzz --device cuda --seed 1 --cases 4000 --seconds 80 2>&1 | tee "$OUT/fuzz_1.log" | tail -30
timeout 170 python3 -m pytest -q -n 0 -m gpu tests/users/test_jit.py tests/users/test_new.py tests/users/test_check.py tests/users/test_faults.py tests/users/test_course.py 2>&1 | tee "$OUT/pytest_users.log" | tail -30
