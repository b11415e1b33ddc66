# 120 s on one card (at most 145): GPU tests that no lane of round C ran apart; names of what fails
cd tests && export PYTHONPATH=$PYTHONPATH:. && cd ..
timeout 85 python3 -m pytest -v -n 14 -p no:cacheprovider -m "gpu and not slow" \
  tests/modules/projections tests/modules/embedding tests/modules/convs tests/models/test_pointnet_nn.py \
  tests/models/test_pointnet_mlps.py tests/models/test_pointnet_fuse.py tests/models/test_searches.py tests/models/test_forward.py \
  tests/models/test_fuse_vision.py tests/points/test_layers_autograd.py tests/points/test_edge_kernels.py \
  tests/points/test_cast_together.py tests/integration/test_inductor_patches.py tests/integration/test_inductor_embedding.py \
  tests/integration/test_torch_tools.py tests/reduce/test_reduce.py tests/reduce/test_reduce_edges.py \
  2>&1 | grep -E "FAILED|ERROR|passed|failed" | cut -c1-200 | sort -u | tail -40
timeout 60 python3 -m pytest -v -n 14 -p no:cacheprovider -m "gpu and not slow" tests/contract \
  -k "conv or edge_rows_first or embedding" 2>&1 | grep -E "FAILED|ERROR|passed|failed" | cut -c1-200 | sort -u | tail -20
