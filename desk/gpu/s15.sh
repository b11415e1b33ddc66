. .carry/lanes.sh
( CUDA_VISIBLE_DEVICES=0 timeout 100 python3 .carry/next/wide_ab.py wide > $O/wide_a.txt 2>&1; echo "a rc $? $SECONDS" ) &
( CUDA_VISIBLE_DEVICES=1 PYTHONPATH=/tmp/fo2:/tmp/site timeout 100 python3 .carry/next/wide_ab.py base > $O/wide_b.txt 2>&1; echo "b rc $? $SECONDS" ) &
wait
( CUDA_VISIBLE_DEVICES=0 timeout -s INT -k 15 100 python3 -m pytest -q -n 14 --maxfail=30 -p no:cacheprovider -m "gpu and not slow" tests/gemm/test_thin.py > $O/tests.txt 2>&1; tail -30 $O/tests.txt | cut -c1-200 ) &
( CUDA_VISIBLE_DEVICES=1 timeout 60 compute-sanitizer --tool racecheck python3 .carry/next/wide_san.py > $O/san.txt 2>&1; tail -5 $O/san.txt;  CUDA_VISIBLE_DEVICES=1 timeout 60 compute-sanitizer --tool memcheck python3 .carry/next/wide_san.py > $O/san2.txt 2>&1; tail -5 $O/san2.txt ) &
finish ${ALL:-200}
paste -d'|' $O/wide_a.txt $O/wide_b.txt | awk -F'|' '{print $1; print $2}' | cut -c1-150
pack
