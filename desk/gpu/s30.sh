. .carry/lanes.sh
w() { CUDA_VISIBLE_DEVICES=$1 timeout $4 nice -n -10 python3 -m fusedops bench wild --family $2 --count $3 --seed $5 --out $O/wild$1_$5/ >> $O/wild$1.txt 2>&1; echo "wild $2 rc $? $SECONDS"; }
( w 0 linear 90 40 31127; w 0 gated,mlp 60 45 31127
  CUDA_VISIBLE_DEVICES=0 timeout 30 nice -n -10 python3 -m fusedops bench fp32 --out $O/fp32/ > $O/fp32.txt 2>&1; echo "fp32 rc $? $SECONDS" ) &
( for t in 0; do CUDA_VISIBLE_DEVICES=1 timeout 35 compute-sanitizer --tool racecheck --racecheck-report all python3 .carry/next/race_parts.py $t > $O/race$t.txt 2>&1; grep -v "Saved host\|Host Frame" $O/race$t.txt | head -14 | cut -c1-500; tail -1 $O/race$t.txt; done; echo "race $SECONDS"
  CUDA_VISIBLE_DEVICES=1 timeout -s INT -k 10 40 python3 -m pytest -q -n 15 --maxfail=30 -p no:cacheprovider -m "gpu and not slow" tests/gemm/test_parts.py tests/gemm/test_thin.py tests/gemm/test_single_words.py tests/gemm/test_mlp.py > $O/tests.txt 2>&1; grep -E "FAILED|passed|failed" $O/tests.txt | cut -c1-200 | tail -30 ) &
finish ${ALL:-100}
for i in 0_31127; do python3 -m fusedops bench --summary $O/wild$i/wild.csv 2>/dev/null | grep "wild " | cut -c1-150; done
pack
