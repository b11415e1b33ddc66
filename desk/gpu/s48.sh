# H100: depthwise down columns again; ncu of three kernels; tests of conv.
. .carry/lanes.sh
kill $IRPID 2>/dev/null
PYTHONPATH=$NEW:$SITE timeout 70 python3 .carry/next/dw_ab.py new 2 > $O/dw_new.txt 2>&1; echo "dw $SECONDS"; grep -E " 3 2 | 7 1 " $O/dw_new.txt | cut -c1-150
export PYTHONPATH=$NEW:$SITE
N="ncu --clock-control none --section SpeedOfLight --section WarpStateStats --section SchedulerStats --section LaunchStats --section MemoryWorkloadAnalysis --section InstructionStats --section Occupancy -s 1 -c 1"
for k in fwd dx dw; do timeout 60 $N -k regex:depthwise python3 .carry/next/ncu7.py $k > $O/ncu_$k.txt 2>&1; done; echo "ncu $SECONDS"
T() { timeout -s INT -k 10 $1 python3 -m pytest -q -n ${3:-15} --maxfail=60 -p no:cacheprovider -m "gpu and not slow" $2 > $O/tests_$4.txt 2>&1; grep -E "FAILED|ERROR|passed|failed" $O/tests_$4.txt | cut -c1-200 | tail -30; echo "tests $4 $SECONDS"; }
T 100 "tests/conv" 15 a
pack
