. .carry/lanes.sh
( CUDA_VISIBLE_DEVICES=0 timeout 100 python3 .carry/next/wide_ab.py wide > $O/wide_a.txt 2>&1; echo "a rc $? $SECONDS"
  CUDA_VISIBLE_DEVICES=0 timeout -s INT -k 15 60 python3 -m pytest -q -n 10 --maxfail=30 -p no:cacheprovider -m "gpu and not slow" tests/gemm/test_thin.py > $O/tests.txt 2>&1; tail -1 $O/tests.txt | cut -c1-200 ) &
( CUDA_VISIBLE_DEVICES=1 PYTHONPATH=/tmp/fo2:/tmp/site timeout 100 python3 .carry/next/wide_ab.py base > $O/wide_b.txt 2>&1; echo "b rc $? $SECONDS"
  CUDA_VISIBLE_DEVICES=1 timeout 25 compute-sanitizer --tool racecheck python3 .carry/next/wide_san.py > $O/san.txt 2>&1; tail -1 $O/san.txt ) &
finish ${ALL:-150}
paste -d' ' <(grep "us " $O/wide_a.txt | cut -d' ' -f2-9) <(grep "us " $O/wide_b.txt | cut -d' ' -f3,9-)
pack
