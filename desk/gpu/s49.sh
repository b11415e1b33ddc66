# H100: depthwise by band matrices; tests of conv.
. .carry/lanes.sh
kill $IRPID 2>/dev/null
export PYTHONPATH=$NEW:$SITE
T() { timeout -s INT -k 10 $1 python3 -m pytest -q -n ${3:-15} --maxfail=60 -p no:cacheprovider -m "gpu and not slow" $2 > $O/tests_$4.txt 2>&1; grep -E "FAILED|ERROR|passed|failed" $O/tests_$4.txt | cut -c1-200 | tail -30; echo "tests $4 $SECONDS"; }
T 60 "tests/conv/test_depthwise.py" 15 a
timeout 70 python3 .carry/next/dw_ab.py new 1 > $O/dw_new.txt 2>&1; echo "dw $SECONDS"; grep new $O/dw_new.txt | cut -c1-150
if [ -e /tmp/fo2 ]; then PYTHONPATH=$OLD:$SITE timeout 70 python3 .carry/next/dw_ab.py variant 1 > $O/dw_var.txt 2>&1; echo "dw $SECONDS"; grep variant $O/dw_var.txt | cut -c1-150; fi
N="ncu --clock-control none --section SpeedOfLight --section WarpStateStats --section SchedulerStats --section MemoryWorkloadAnalysis --section InstructionStats --section Occupancy -s 1 -c 1"
timeout 90 python3 -m pytest -q -n 12 -p no:cacheprovider -m gpu tests/modules/test_fuse_depthwise.py 2>&1 | tail -5
pack
