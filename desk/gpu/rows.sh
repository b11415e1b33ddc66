# rows: 170 s (tests on 8 processes, then wild of four families on one GPU)
mkdir -p $OUT/rows; set -f
(timeout 80 python3 -m pytest -q -p no:cacheprovider -n 8 -m "gpu and not slow" tests/stencil tests/scan/test_segment.py > $OUT/rows/tests.txt 2>&1; grep -E "^FAILED|^ERROR|passed|failed" $OUT/rows/tests.txt | cut -c1-160 | sort -u | tail -8)
w() { timeout $(($4+25)) python3 -m fusedops bench wild --family $1 --seed $2 --count $3 --budget $4 --out $OUT/rows/ > $OUT/rows/$1_$2.txt 2>&1; echo "$1 $2"; grep -A9 "over the best peer" $OUT/rows/$1_$2.txt | cut -c1-150; }
w segment 30411 150 18; w stencil 30411 150 25; w stencil 2611 182 25; w segment 2611 150 18; w scan 30411 80 15; w softmax 30411 150 15
