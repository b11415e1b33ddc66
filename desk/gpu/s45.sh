# H100, first call: depthwise down columns against strips, kernels of three steps, what failed at stop 50, half the suite.
. .carry/lanes.sh
PYTHONPATH=$NEW:$SITE timeout 70 python3 .carry/next/dw_ab.py new > $O/dw_new.txt 2>&1; echo "dw $SECONDS"
PYTHONPATH=$OLD:$SITE timeout 70 python3 .carry/next/dw_ab.py old > $O/dw_old.txt 2>&1; echo "dw $SECONDS"
tail -2 $O/dw_new.txt $O/dw_old.txt | cut -c1-300
export PYTHONPATH=$NEW:$SITE:/tmp/fe
timeout 60 python3 .carry/next/pw_ab.py new > $O/pw_new.txt 2>&1; echo "pw $SECONDS"
PYTHONPATH=$OLD:$SITE timeout 40 python3 .carry/next/pw_ab.py old > $O/pw_old.txt 2>&1; echo "pw $SECONDS"; tail -1 $O/pw_new.txt $O/pw_old.txt
export PYTHONPATH=$NEW:$SITE
wait $IRPID; tail -2 /tmp/ir.log
timeout 60 python3 .carry/next/case_prof.py fp16 step C2048_H7_O512 C480_H14_O80 C1024_H14_O256 > $O/case_prof.txt 2>&1; tail -1 $O/case_prof.txt; echo "prof $SECONDS"
T() { timeout -s INT -k 10 $1 python3 -m pytest -q -n ${3:-15} --maxfail=60 -p no:cacheprovider -m "gpu and not slow" $2 > $O/tests_$4.txt 2>&1; grep -E "FAILED|ERROR|passed|failed" $O/tests_$4.txt | cut -c1-200 | tail -30; echo "tests $4 $SECONDS"; }
T 110 "tests/epilogue tests/users" 15 a
T $((585-SECONDS)) "tests/conv tests/contract tests/gemm tests/modules tests/models tests/fp8" 15 b
pack
