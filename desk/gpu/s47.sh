# H100: depthwise down columns of pairs against strips, 7x7 against torch; the norm in cluster kernels; tests of conv.
. .carry/lanes.sh
PYTHONPATH=$OLD:$SITE timeout 60 python3 .carry/next/dw_ab.py old 1 > $O/dw_old.txt 2>&1; echo "dw $SECONDS"
FUSEDOPS_COLS=1 PYTHONPATH=$NEW:$SITE timeout 70 python3 .carry/next/dw_ab.py new 2 > $O/dw_new.txt 2>&1; echo "dw $SECONDS"
timeout 40 python3 .carry/next/pw_ab.py new0 > $O/pw_new.txt 2>&1; echo "pw $SECONDS"
PYTHONPATH=$OLD:$SITE timeout 40 python3 .carry/next/pw_ab.py old > $O/pw_old.txt 2>&1; echo "pw $SECONDS"
export PYTHONPATH=$NEW:$SITE
T() { timeout -s INT -k 10 $1 python3 -m pytest -q -n ${3:-15} --maxfail=60 -p no:cacheprovider -m "gpu and not slow" $2 > $O/tests_$4.txt 2>&1; grep -E "FAILED|ERROR|passed|failed" $O/tests_$4.txt | cut -c1-200 | tail -30; echo "tests $4 $SECONDS"; }
T 150 "tests/conv" 15 a
kill $IRPID
pack
