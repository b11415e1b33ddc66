# Tests of the tip, batch norm by clusters against passes, models that have no rows on the card.
. .carry/lanes.sh
for d in bf16 fp16; do PYTHONPATH=$NEW:$SITE timeout 40 python3 .carry/next/parts.py new $d bn > $O/bn_new_$d.txt 2>&1; PYTHONPATH=$OLD:$SITE timeout 40 python3 .carry/next/parts.py old $d bn > $O/bn_old_$d.txt 2>&1; done
for f in $O/bn_*; do cut -c1-200 $f; done; echo "bn $SECONDS"
PYTHONPATH=$OLD:$SITE timeout 30 python3 .carry/next/parts.py old bf16 mm > $O/parts.txt 2>&1; cut -c1-200 $O/parts.txt; echo "parts $SECONDS"
wait $IRPID; tail -1 /tmp/ir.log
export PYTHONPATH=$NEW:$SITE
T() { timeout -s INT -k 10 $1 python3 -m pytest -q -n ${3:-15} --maxfail=60 -p no:cacheprovider -m "gpu and not slow" $2 > $O/tests_$4.txt 2>&1; grep -E "FAILED|ERROR|passed|failed" $O/tests_$4.txt | cut -c1-200 | tail -30; echo "tests $4 $SECONDS"; }
T 190 "tests/conv tests/modules tests/integration" 15 a
export PYTHONPATH=$OLD:$SITE; cp -r $NEW/fusedops/_epilogue/ir $OLD/fusedops/_epilogue/ 2>/dev/null
if nvidia-smi --query-gpu=name --format=csv,noheader | grep -q H200; then A="llama titan_llama convnext_base"; D="bert gpt2_medium nanogpt_autocast"; C="opt roberta"; else A="titan_llama convnext_base t5"; D="clip whisper nanogpt_autocast"; C="swin_base mixtral opt"; fi
lane() { n=$1; shift; for m in "$@"; do [ $SECONDS -gt 500 ] && break; timeout -s INT -k 5 $((575-SECONDS)) python3 -m fusedops bench models --case "$m/*" --pass step --turns /tmp/turns --peers eager,compile,compile_whole,compile_graphs,liger --out $O/models_$n/ >> $O/models_$n.txt 2>&1; echo "model $m rc $? $SECONDS"; done; }
lane a $A & lane d $D & lane c $C &
wait
for n in a d c; do grep -E "^\[|FAILED" $O/models_$n.txt | cut -c1-230; done
pack
