. .carry/lanes.sh
# H100, first call: what failed at stop 50, then half the suite; the host's rows.
wait $IRPID; tail -3 /tmp/ir.log
T() { timeout -s INT -k 10 $1 python3 -m pytest -q -n ${3:-15} --maxfail=60 -p no:cacheprovider -m "gpu and not slow" $2 > $O/tests_$4.txt 2>&1; grep -E "FAILED|ERROR|passed|failed" $O/tests_$4.txt | cut -c1-200 | tail -30; echo "tests $4 $SECONDS"; }
T 120 "tests/epilogue tests/users" 15 a
T 330 "tests/contract tests/gemm tests/modules tests/conv tests/models tests/fp8" 15 b
timeout -s INT -k 5 60 nice -n -10 python3 -m fusedops bench host --out $O/host/ > $O/host.txt 2>&1; tail -30 $O/host.txt | cut -c1-150; echo "host $SECONDS"
pack
