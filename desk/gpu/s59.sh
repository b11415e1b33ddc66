# H100: as s58 with fallbacks declared and the time model of clusters of four and eight.
export SITE=/tmp/site
. .carry/lanes.sh
export PYTHONPATH=$NEW:$SITE
rm -f /tmp/turns; touch /tmp/turns
END=${END:-440}
timeout 100 python3 .carry/next/sk8.py h100 > $O/sk8.txt 2>&1; cut -c1-130 $O/sk8.txt | tail -41 | sed 's/skinny //;s/ best/\t/'; echo "sk8 $SECONDS"
T() { timeout -s INT -k 10 $1 flock -o -s /tmp/turns python3 -m pytest -q -n ${3:-15} --maxfail=60 -p no:cacheprovider -m "gpu and not slow" $2 > $O/tests_$4.txt 2>&1; grep -E "FAILED|ERROR|passed|failed" $O/tests_$4.txt | cut -c1-200 | tail -30; echo "tests $4 $SECONDS"; }
R() { for m in "$@"; do [ $SECONDS -lt $((END-60)) ] && timeout $((END-SECONDS)) python3 .carry/next/rn_ab.py $m > "$O/rn_${m// /_}.txt" 2>&1; grep -E "RESULT|^{|Error|warm" "$O/rn_${m// /_}.txt" | cut -c1-250; echo "rn $m $SECONDS"; done; }
lane() { n=$1; shift; for m in "$@"; do [ $SECONDS -gt $((END-90)) ] && break; timeout -s INT -k 5 $((END-SECONDS)) python3 -m fusedops bench models --case "${m%%:*}/*" --pass step --turns /tmp/turns --peers eager,compile,compile_whole,compile_graphs${m##*:} --out $O/models_$n/ >> $O/models_$n.txt 2>&1; echo "model $m rc $? $SECONDS"; grep -E "^\[|FAILED|bench:" $O/models_$n.txt | cut -c1-200 | tail -4; done; }
T 110 "tests/conv/test_inductor_convs.py tests/gemm/test_skinny.py tests/models/test_inductor_groups.py tests/integration/test_inductor_saved.py" 4 a &
R "resnet50 64 bf16 g" "efficientnet_b0 64 bf16 g" &
lane a pointnet2_bn: & lane b gin: & lane c t5: & lane d pointnet2: &
wait
pack
