# lead: 150 s
mkdir -p $OUT/lead; set -f
(timeout 100 python3 -m pytest -q -p no:cacheprovider -n 10 -m "gpu and not slow" tests/reduce tests/points/test_points_sampling.py tests/points/test_points_grouping.py tests/scan tests/rows > $OUT/lead_tests.txt 2>&1; grep -E "^FAILED|^ERROR|passed|failed" $OUT/lead_tests.txt | cut -c1-160 | sort -u | tail -12)
for seed in 2611 77; do timeout 60 python3 -m fusedops bench wild --family reduce --seed $seed --count 300 --budget 40 --out $OUT/lead/ > $OUT/lead/reduce_$seed.txt 2>&1; grep -A12 "over the best peer" $OUT/lead/reduce_$seed.txt | cut -c1-150; done
timeout 60 python3 -m fusedops bench wild --family softmax --seed 2611 --count 300 --budget 40 --out $OUT/lead/ > $OUT/lead/softmax.txt 2>&1; grep -A10 "over the best peer" $OUT/lead/softmax.txt | cut -c1-150
for c in scan/28 fps/12 fps/48 fps/43 group/28 group/70; do timeout 40 python3 -m fusedops bench wild --family ${c%/*} --seed 2611 --count 80 --case "$c/*" --out $OUT/lead/ 2>&1 | grep "ours [0-9]" | cut -c1-140; done
