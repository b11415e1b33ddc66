# expected seconds: 170 (one GPU). Branch points merged. FPS of small clouds, searches on a second stream, sums, casts, products by point: tests, step times, rows, profile, memcheck, racecheck.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
OUT=${OUT:-/tmp/points}; mkdir -p "$OUT"
nvcc -std=c++20 -O3 --expt-relaxed-constexpr --extended-lambda -I. -arch=sm_90a -o /tmp/points_fps "$here/points_fps.cu" 2>&1 | grep -i error | head -3
timeout 20 /tmp/points_fps
timeout 150 python3 -m pytest -q -p no:cacheprovider -n 6 -m "not slow" tests/points/test_points_sampling.py tests/models/test_searches.py tests/points/test_feature_propagation.py tests/models/test_forward.py tests/points/test_edge_rows.py tests/points/test_cast_together.py tests/points/test_set_abstraction.py tests/points/test_edge_conv.py tests/points/test_layer_norms.py tests/points/test_set_abstraction_dtypes.py tests/points/test_points_grouping.py tests/rows/*embedding* > "$OUT/points_tests.txt" 2>&1; grep -E "^FAILED|^ERROR|passed|failed" "$OUT/points_tests.txt" | cut -c1-200 | tail -12; grep -E "^E  " "$OUT/points_tests.txt" | cut -c1-160 | head -6
for p in infer fwd step; do for c in "ssg_cls*" "msg_seg*" "dgcnn_cls*" "sa/*"; do case $p$c in fwd[smd][sg]*|inferssa*|infersa/*) continue;; esac
  timeout 90 python3 -m fusedops bench pointnet --case "$c" --pass $p --peers eager --dtype bf16 --out "$OUT/points/" 2>&1 | grep -E "ours [0-9]" | sed 's/.*pointnet //' | cut -c1-120
done; done
timeout 90 python3 "$here/points_prof.py" "$OUT/points_prof.txt" 2>&1 | grep -E "===|ERR"
cat > /tmp/points_san.py <<'Q'
import torch, fusedops
from fusedops import models
P = fusedops.points
for n in (1, 100, 400, 1000, 2000, 3000):
    x = torch.rand(3, n, 3, device="cuda"); x[0, : n // 2] = 0
    P.farthest_point_sample(x, min(n, 40), torch.tensor([n, n // 2, 1], device="cuda"))
    P.farthest_point_sample(x.half(), min(n, 40))
torch.manual_seed(0)
stages = (models.Stage(64, (.3,), (8,), ((32, 32),)), models.Stage(16, (.6,), (8,), ((32, 264),)))
m = models.PointNet2Classifier(5, stages=stages, all_points=(64,), head=(32,), dropout=(0.0,)).cuda().to(torch.bfloat16)
y = torch.rand(2, 300, 3, device="cuda")
with torch.no_grad(): m.eval()(y)
m.train()(y).float().sum().backward()
for b, n, m, k in ((2, 5000, 1500, 20), (1, 300, 700, 30)): torch.ops.fusedops.edge_lists(torch.randint(-1, n + 1, (b, m, k), device='cuda'), n)
torch.cuda.synchronize()
Q
for tool in memcheck racecheck; do timeout 90 compute-sanitizer --tool $tool --error-exitcode 1 python3 /tmp/points_san.py 2>&1 | tail -2; done
