# lead3: 200 s
mkdir -p $OUT/lead3; set -f
(timeout 110 python3 -m pytest -q -p no:cacheprovider -n 12 -m "gpu and not slow" tests/reduce tests/models/test_casts.py tests/models/test_searches.py tests/points/test_points_sampling.py tests/scan tests/rows tests/elementwise > $OUT/lead3_tests.txt 2>&1; grep -E "^FAILED|^ERROR|passed|failed" $OUT/lead3_tests.txt | cut -c1-160 | sort -u | tail -12)
for c in "ssg_cls/*" "msg_seg/*"; do for p in infer step; do timeout 60 python3 -m fusedops bench pointnet --case "$c" --pass $p --peers eager --dtype bf16 --out $OUT/lead3/ 2>&1 | grep -E "ours [0-9]" | sed 's/.*pointnet //' | cut -c1-84; done; done
for f in reduce softmax elementwise fps group scan; do timeout 70 python3 -m fusedops bench wild --family $f --seed 2611 --count 300 --budget 36 --out $OUT/lead3/ > $OUT/lead3/$f.txt 2>&1; grep -A8 "over the best peer" $OUT/lead3/$f.txt | cut -c1-150; done
