# H200: the other half of the suite; torch's depthwise 7x7; where the host's time of whisper and dlrm goes.
. .carry/lanes.sh
wait $IRPID
T() { timeout -s INT -k 10 $1 python3 -m pytest -q -n ${3:-15} --maxfail=60 -p no:cacheprovider -m "gpu and not slow" $2 > $O/tests_$4.txt 2>&1; grep -E "FAILED|ERROR|passed|failed" $O/tests_$4.txt | cut -c1-200 | tail -30; echo "tests $4 $SECONDS"; }
(timeout 200 python3 .carry/next/prof_host.py /tmp/turns whisper compile_whole inductor > $O/host_whisper.txt 2>&1; echo "whisper $SECONDS"
timeout 90 python3 .carry/next/prof_host.py /tmp/turns dlrm compile inductor > $O/host_dlrm.txt 2>&1; echo "dlrm $SECONDS") 
timeout 60 python3 .carry/next/conv7.py > $O/conv7.txt 2>&1; cat $O/conv7.txt; echo "conv7 $SECONDS"
T $((580-SECONDS)) "tests/rows tests/reduce tests/scan tests/points tests/stencil tests/elementwise tests/bench tests/integration tests/tuning tests/template tests/compat tests/distributed tests/project" 15 c
pack
