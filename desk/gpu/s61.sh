# H200: wild skinny, fuse of gin, models whose rows are a day older, conv step rows.
export SITE=/tmp/site
. .carry/lanes.sh
export PYTHONPATH=$NEW:$SITE
rm -f /tmp/turns; touch /tmp/turns
END=${END:-585}
timeout 130 python3 -m fusedops bench wild --family skinny --count 300 --seed ${SEED:-11} --out $O/wild/ > $O/wild_skinny.txt 2>&1; tail -25 $O/wild_skinny.txt | cut -c1-180; echo "wild $SECONDS"
timeout 70 python3 -m fusedops bench pointnet --dtype bf16 --case "edge/*" --pass step --peers eager,compile,torch --out $O/pointnet/ > $O/pointnet.txt 2>&1; tail -4 $O/pointnet.txt | cut -c1-200; echo "edge $SECONDS"
timeout 170 python3 -m fusedops bench fp8 --dtype bf16 --case "T*" --pass step --peers ours_bf16,torchao --out $O/fp8/ > $O/fp8.txt 2>&1; grep "^\[" $O/fp8.txt | cut -c1-200; echo "fp8 $SECONDS"
T() { timeout -s INT -k 10 $1 flock -o -s /tmp/turns python3 -m pytest -q -n ${3:-15} --maxfail=60 -p no:cacheprovider -m "gpu and not slow" $2 > $O/tests_$4.txt 2>&1; grep -E "FAILED|ERROR|passed|failed" $O/tests_$4.txt | cut -c1-200 | tail -30; echo "tests $4 $SECONDS"; }
R() { for m in "$@"; do [ $SECONDS -lt $((END-60)) ] && timeout $((END-SECONDS)) python3 .carry/next/rn_ab.py $m > "$O/rn_${m// /_}.txt" 2>&1; grep -E "RESULT|^{|Error|warm" "$O/rn_${m// /_}.txt" | cut -c1-250; echo "rn $m $SECONDS"; done; }
lane() { n=$1; shift; for m in "$@"; do [ $SECONDS -gt $((END-130)) ] && break; timeout -s INT -k 5 $((END-SECONDS)) python3 -m fusedops bench models --case "${m%%:*}/*" --pass step --turns /tmp/turns --peers eager,compile,compile_whole,compile_graphs${m##*:} --out $O/models_$n/ >> $O/models_$n.txt 2>&1; echo "model $m rc $? $SECONDS"; grep -E "^\[|FAILED|bench:" $O/models_$n.txt | cut -c1-200 | tail -4; done; }
lane a gin: & lane b dlrm: & lane c opt: & lane d mistral: &
wait
pack
