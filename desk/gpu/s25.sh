. .carry/lanes.sh
( CUDA_VISIBLE_DEVICES=0 timeout 40 python3 .carry/next/parts_ab.py new 4 > $O/new.txt 2>&1; echo "a rc $? $SECONDS"
  CUDA_VISIBLE_DEVICES=0 timeout 70 python3 .carry/next/parts_fit.py new 45 1 > $O/fit1.txt 2>&1; echo "fit rc $? $SECONDS" ) &
( CUDA_VISIBLE_DEVICES=1 timeout -s INT -k 15 60 python3 -m pytest -q -n 14 --maxfail=30 -p no:cacheprovider -m "gpu and not slow" tests/gemm/test_unaligned.py tests/gemm/test_large_fp32.py tests/gemm/test_single_words.py > $O/tests.txt 2>&1; grep -E "FAILED|passed|failed" $O/tests.txt | cut -c1-200 | tail -20
  CUDA_VISIBLE_DEVICES=1 timeout 50 python3 .carry/next/parts_fit.py new 32 2 > $O/fit2.txt 2>&1; echo "fit rc $? $SECONDS" ) &
finish ${ALL:-110}
wc -l $O/fit*.txt; tail -2 $O/fit1.txt
pack
