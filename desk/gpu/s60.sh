# H100, first after `git cherry-pick 372653ba` on main (convolutions in the graph pass): tests, ResNets, wild skinny, models whose rows are old.
export SITE=/tmp/site
. .carry/lanes.sh
export PYTHONPATH=$NEW:$SITE
rm -f /tmp/turns; touch /tmp/turns
END=${END:-585}
timeout 130 python3 -m fusedops bench wild --family skinny --count 300 --seed ${SEED:-11} --out $O/wild/ > $O/wild_skinny.txt 2>&1; tail -25 $O/wild_skinny.txt | cut -c1-180; echo "wild $SECONDS"
timeout 70 python3 -m fusedops bench pointnet --dtype bf16 --case "edge/*" --pass step --peers eager,compile,torch --out $O/pointnet/ > $O/pointnet.txt 2>&1; tail -4 $O/pointnet.txt | cut -c1-200; echo "edge $SECONDS"
T() { timeout -s INT -k 10 $1 flock -o -s /tmp/turns python3 -m pytest -q -n ${3:-15} --maxfail=60 -p no:cacheprovider -m "gpu and not slow" $2 > $O/tests_$4.txt 2>&1; grep -E "FAILED|ERROR|passed|failed" $O/tests_$4.txt | cut -c1-200 | tail -30; echo "tests $4 $SECONDS"; }
R() { for m in "$@"; do [ $SECONDS -lt $((END-60)) ] && timeout $((END-SECONDS)) python3 .carry/next/rn_ab.py $m > "$O/rn_${m// /_}.txt" 2>&1; grep -E "RESULT|^{|Error|warm" "$O/rn_${m// /_}.txt" | cut -c1-250; echo "rn $m $SECONDS"; done; }
lane() { n=$1; shift; for m in "$@"; do [ $SECONDS -gt $((END-130)) ] && break; timeout -s INT -k 5 $((END-SECONDS)) python3 -m fusedops bench models --case "${m%%:*}/*" --pass step --turns /tmp/turns --peers eager,compile,compile_whole,compile_graphs${m##*:} --out $O/models_$n/ >> $O/models_$n.txt 2>&1; echo "model $m rc $? $SECONDS"; grep -E "^\[|FAILED|bench:" $O/models_$n.txt | cut -c1-200 | tail -4; done; }
T 120 "tests/conv/test_inductor_convs.py tests/gemm/test_skinny.py tests/models/test_messages_fuse.py tests/models/test_inductor_messages.py tests/conv/test_moments.py tests/contract/test_failed_launch.py tests/integration/test_inductor_options.py" 4 a &
R "resnet50 64 bf16 g" "resnet50 64 bf16" &
lane a titan_llama: opt: & lane b nanogpt_autocast: bert: & lane c mixtral: clip: & lane d whisper: swin_base: &
wait
pack
