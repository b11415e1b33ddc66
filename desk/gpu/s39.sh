. .carry/lanes.sh
wait $IRPID
( timeout 200 python3 scripts/sanitize/tools.py --family gradients,conv --out $O/sanitizer.txt --budget 195 --limit 190 > $O/san.txt 2>&1; tail -12 $O/san.txt | cut -c1-200; echo "san $SECONDS" ) &
( timeout -s INT -k 10 190 python3 -m pytest -q -n 12 --maxfail=40 -p no:cacheprovider -m "gpu and not slow" tests/conv tests/gemm tests/modules tests/models tests/contract > $O/tests.txt 2>&1; grep -E "FAILED|passed|failed" $O/tests.txt | cut -c1-200 | tail -30; echo "tests $SECONDS" ) &
finish 235
C() { timeout -s INT -k 5 $1 nice -n -10 python3 -m fusedops bench conv --dtype $2 --case "$3" --pass $4 --peers $5 --out $O/conv/ >> $O/conv_$2_$4_$6.txt 2>&1; echo "conv $2 $3 rc $? $SECONDS"; tail -2 $O/conv_$2_$4_$6.txt | cut -c1-200; }
C 85 bf16 'resnet50/*' step,infer eager,compile a
pack
