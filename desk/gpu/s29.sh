. .carry/lanes.sh
w() { CUDA_VISIBLE_DEVICES=$1 timeout $4 nice -n -10 python3 -m fusedops bench wild --family $2 --count $3 --seed $5 --out $O/wild$1_$5/ >> $O/wild$1.txt 2>&1; echo "wild $2 rc $? $SECONDS"; }
( w 0 linear,gated 110 70 31127; w 0 mlp 110 45 31127
  CUDA_VISIBLE_DEVICES=0 timeout 45 nice -n -10 python3 -m fusedops bench fp32 --out $O/fp32/ > $O/fp32.txt 2>&1; echo "fp32 rc $? $SECONDS"; tail -4 $O/fp32.txt | cut -c1-200 ) &
( for t in 0 2; do CUDA_VISIBLE_DEVICES=1 timeout 40 compute-sanitizer --tool racecheck --racecheck-report all python3 .carry/next/race_parts.py $t > $O/race$t.txt 2>&1; grep -v "Saved host\|Host Frame" $O/race$t.txt | head -12 | cut -c1-420; tail -1 $O/race$t.txt; done; echo "race $SECONDS"
  CUDA_VISIBLE_DEVICES=1 timeout -s INT -k 10 $((ALL-SECONDS-5)) python3 -m pytest -q -n 15 --maxfail=30 -p no:cacheprovider -m "gpu and not slow" tests/gemm tests/modules tests/integration > $O/tests.txt 2>&1; grep -E "FAILED|passed|failed" $O/tests.txt | cut -c1-200 | tail -30 ) &
finish ${ALL:-170}
for i in 0_31127; do python3 -m fusedops bench --summary $O/wild$i/wild.csv 2>/dev/null | grep "wild " | cut -c1-150; done
pack
