. .carry/lanes.sh
( CUDA_VISIBLE_DEVICES=0 timeout 60 python3 .carry/next/fp32_ab.py new 30 7 > $O/ab_new.txt 2>&1; echo "ab rc $? $SECONDS"
  CUDA_VISIBLE_DEVICES=0 timeout 60 python3 .carry/next/parts_fit.py new 25 3 > $O/fit3.txt 2>&1; echo "fit rc $? $SECONDS" ) &
( CUDA_VISIBLE_DEVICES=1 PYTHONPATH=/tmp/fo2:/tmp/site timeout 60 python3 .carry/next/fp32_ab.py old 30 7 > $O/ab_old.txt 2>&1; echo "ab rc $? $SECONDS"
  CUDA_VISIBLE_DEVICES=1 timeout -s INT -k 15 60 python3 -m pytest -q -n 14 --maxfail=30 -p no:cacheprovider -m "gpu and not slow" tests/gemm/test_parts.py tests/gemm/test_unaligned.py tests/gemm/test_single_words.py tests/gemm/test_linear.py tests/gemm/test_matmul.py > $O/tests.txt 2>&1; grep -E "FAILED|passed|failed" $O/tests.txt | cut -c1-200 | tail -20 ) &
finish ${ALL:-110}
wc -l $O/ab*.txt; tail -2 $O/ab_new.txt
pack
