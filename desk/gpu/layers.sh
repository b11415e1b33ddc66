#!/usr/bin/env bash
# From helper `layers`, about 100 s on an H100: new tests on the GPU, wide layers (one extremum instead of two, this branch), padded inf.
python3 -m pytest -q -n 14 -m "gpu or not gpu" -k cuda tests/models tests/points/test_layer_norms.py tests/points/test_set_abstraction.py tests/points/test_feature_propagation.py tests/points/test_edge_conv.py 2>&1 | tail -15
for case in 256-256-512 256-512-1024; do
  python3 -m fusedops bench pointnet --pass fwd,step --dtype bf16 --case "sa/*$case" --peers eager --out $OUT/wide_$case
done
