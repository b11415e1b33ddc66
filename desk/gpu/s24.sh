. .carry/lanes.sh
( CUDA_VISIBLE_DEVICES=0 timeout 60 python3 .carry/next/parts_ab.py new 4 > $O/new.txt 2>&1; echo "a rc $? $SECONDS" ) &
( CUDA_VISIBLE_DEVICES=1 timeout -s INT -k 15 60 python3 -m pytest -q -n 14 --maxfail=30 -p no:cacheprovider -m "gpu and not slow" tests/gemm/test_unaligned.py tests/gemm/test_large_fp32.py tests/gemm/test_single_words.py > $O/tests.txt 2>&1; grep -E "FAILED|passed|failed" $O/tests.txt | cut -c1-200 | tail -20
for t in 2 0; do CUDA_VISIBLE_DEVICES=1 timeout 60 ncu --clock-control none --set full --import-source no -k regex:parts_kernel -s 1 -c 1 -o /tmp/p$t -f python3 .carry/next/parts_ncu.py 401367 64 264 $t > $O/ncu$t.txt 2>&1; ncu -i /tmp/p$t.ncu-rep > $O/details$t.txt; ncu -i /tmp/p$t.ncu-rep --page source --csv > $O/source$t.csv 2>&1; done; echo ncu $SECONDS ) &
finish ${ALL:-110}
cut -c1-700 $O/new.txt
pack
