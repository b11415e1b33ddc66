# H100: passes of convolutions, messages, groups, masks, permutations; kernels for few rows. Lanes compile beside tests.
export SITE=/tmp/site
. .carry/lanes.sh
export PYTHONPATH=$NEW:$SITE
rm -f /tmp/turns; touch /tmp/turns
(timeout 100 flock -s /tmp/turns compute-sanitizer --tool memcheck --error-exitcode 1 python3 -m pytest -q -x tests/gemm/test_skinny.py -k "every_config" > $O/san_sk.txt 2>&1; echo "san rc $?"; tail -3 $O/san_sk.txt) &
T() { timeout -s INT -k 10 $1 flock -s /tmp/turns python3 -m pytest -q -n ${3:-15} --maxfail=60 -p no:cacheprovider -m "gpu and not slow" $2 > $O/tests_$4.txt 2>&1; grep -E "FAILED|ERROR|passed|failed" $O/tests_$4.txt | cut -c1-200 | tail -30; echo "tests $4 $SECONDS"; }
R() { for m in "$@"; do [ $SECONDS -lt 470 ] && timeout $((590-SECONDS)) python3 .carry/next/rn_ab.py $m > "$O/rn_${m// /_}.txt" 2>&1; grep -E "RESULT|^{|Error" "$O/rn_${m// /_}.txt" | cut -c1-250; echo "rn $m $SECONDS"; done; }
lane() { n=$1; shift; for m in "$@"; do [ $SECONDS -gt 470 ] && break; timeout -s INT -k 5 $((590-SECONDS)) python3 -m fusedops bench models --case "${m%%:*}/*" --pass step --turns /tmp/turns --peers eager,compile,compile_whole,compile_graphs${m##*:} --out $O/models_$n/ >> $O/models_$n.txt 2>&1; echo "model $m rc $? $SECONDS"; grep -E "^\[|FAILED|bench:" $O/models_$n.txt | cut -c1-230 | tail -4; done; }
T 230 "tests/conv tests/gemm tests/models tests/integration tests/points tests/contract" 8 a &
(timeout 200 flock /tmp/turns python3 .carry/next/sk8.py h100 > $O/sk8.txt 2>&1; cut -c1-330 $O/sk8.txt; echo "sk8 $SECONDS"; R "efficientnet_b0 64 bf16 g") &
R "resnet50 64 bf16 g" "resnet50 64 bf16" &
lane a pointnet2_bn: whisper: & lane b t5: & lane c gin: mixtral: &
wait
pack
