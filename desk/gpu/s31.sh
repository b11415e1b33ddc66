. .carry/lanes.sh
w() { CUDA_VISIBLE_DEVICES=$1 timeout $4 nice -n -10 python3 -m fusedops bench wild --family $2 --count $3 --seed $5 --out $O/wild$1_$5/ >> $O/wild$1.txt 2>&1; echo "wild $2 rc $? $SECONDS"; }
wait $IRPID; echo "ir $SECONDS"
( timeout 170 python3 scripts/sanitize/tools.py --family unaligned --out $O/sanitizer.txt --budget 160 --limit 150 > $O/san.txt 2>&1; tail -8 $O/san.txt | cut -c1-300; echo "san $SECONDS" ) &
( timeout -s INT -k 10 185 python3 -m pytest -q -n 13 --maxfail=60 -p no:cacheprovider -m "gpu and not slow" tests/gemm tests/modules tests/integration/test_training.py tests/models/test_searches.py > $O/tests.txt 2>&1; grep -E "FAILED|passed|failed" $O/tests.txt | cut -c1-200 | tail -30; echo "tests $SECONDS" ) &
finish 230
timeout 55 nice -n -10 python3 .carry/next/parts_fit.py h100 48 71 > $O/fit.txt 2>&1; echo "fit rc $? $(wc -l < $O/fit.txt) $SECONDS"
timeout 45 nice -n -10 python3 .carry/next/fp32_ab.py h100 38 72 > $O/ab.txt 2>&1; echo "ab rc $? $SECONDS"; head -14 $O/ab.txt
w 0 linear 40 45 31127
timeout 40 nice -n -10 python3 -m fusedops bench fp32 --out $O/fp32/ > $O/fp32.txt 2>&1; echo "fp32 rc $? $SECONDS"
for i in 0_31127; do python3 -m fusedops bench --summary $O/wild$i/wild.csv 2>/dev/null | grep "wild " | cut -c1-150; done
pack
