. .carry/lanes.sh
( CUDA_VISIBLE_DEVICES=0 timeout 120 python3 .carry/next/parts_ab.py new 4 > $O/new.txt 2>&1; echo "a rc $? $SECONDS"
  CUDA_VISIBLE_DEVICES=0 timeout -s INT -k 15 90 python3 -m pytest -q -n 14 --maxfail=30 -p no:cacheprovider -m "gpu and not slow" tests/gemm/test_unaligned.py tests/gemm/test_large_fp32.py tests/gemm/test_single_words.py > $O/tests.txt 2>&1; tail -1 $O/tests.txt | cut -c1-200 ) &
( CUDA_VISIBLE_DEVICES=1 PYTHONPATH=/tmp/fo2:/tmp/site timeout 120 python3 .carry/next/parts_ab.py old 2 > $O/old.txt 2>&1; echo "b rc $? $SECONDS"
  CUDA_VISIBLE_DEVICES=1 PYTHONPATH=$PYTHONPATH:/tmp/fe timeout 60 nice -n -10 python3 -m fusedops bench conv --dtype bf16 --case '*folded*' --pass infer --peers eager,cudnn,compile --out $O/conv/ > $O/conv2.txt 2>&1; tail -16 $O/conv2.txt | cut -c1-200; echo "folded $SECONDS" ) &
finish ${ALL:-190}
cut -c1-700 $O/new.txt; cut -c1-300 $O/old.txt
pack
