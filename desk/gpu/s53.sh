# Batch norm by clusters again, tests of conv, layers' rows over eager, compile and cuDNN, models.
export SITE=/tmp/site
. .carry/lanes.sh
ls /tmp/site | wc -l
for d in bf16 fp16; do PYTHONPATH=$NEW:$SITE timeout 40 python3 .carry/next/parts.py new $d bn > $O/bn_new_$d.txt 2>&1; done
for f in $O/bn_*; do grep new $f | cut -c1-200; done; echo "bn $SECONDS"
wait $IRPID; tail -1 /tmp/ir.log
export PYTHONPATH=$NEW:$SITE:/tmp/fe
for i in 0 1 2 3 4 5; do timeout 150 nice python3 .carry/next/warm.py $i 6 step:bf16 step:fp16 infer:fp16 infer:bf16 > $O/warm_$i.txt 2>&1 & done
T() { timeout -s INT -k 10 $1 python3 -m pytest -q -n ${3:-15} --maxfail=60 -p no:cacheprovider -m "gpu and not slow" $2 > $O/tests_$4.txt 2>&1; grep -E "FAILED|ERROR|passed|failed" $O/tests_$4.txt | cut -c1-200 | tail -30; echo "tests $4 $SECONDS"; }
T 100 "tests/conv" 10 a
wait; echo "warm $SECONDS"; tail -qn 1 $O/warm_*.txt | cut -c1-200
C() { timeout -s INT -k 5 $1 python3 -m fusedops bench conv --dtype $2 --case "$3" --pass $4 --peers $5 --out $O/conv/ > $O/conv_$2_$4_$6.txt 2>&1; echo "conv $2 $3 $4 rc $? $SECONDS"; tail -1 $O/conv_$2_$4_$6.txt | cut -c1-200; }
C 90 bf16 'N*' step eager,compile a
C 90 fp16 'N*' step eager,compile b
C 70 fp16 'N*/[!f]*' infer eager,compile,cudnn c
C 30 bf16,fp16 'resnet50*' step,infer eager,compile r
M=$((SECONDS+5))
lane() { n=$1; shift; for m in "$@"; do [ $SECONDS -gt 500 ] && break; timeout -s INT -k 5 $((580-SECONDS)) python3 -m fusedops bench models --case "${m%%:*}/*" --pass step --turns /tmp/turns --peers eager,compile,compile_whole,compile_graphs${m##*:} --out $O/models_$n/ >> $O/models_$n.txt 2>&1; echo "model $m rc $? $SECONDS"; done; }
if nvidia-smi --query-gpu=name --format=csv,noheader | grep -q H200; then A="titan_llama:"; D="nanogpt_autocast:"; E="convnext_base:"; F="whisper:,liger"; else A="titan_llama:"; D="convnext_base:"; E="clip:,liger"; F="swin_base:"; fi
lane a $A & lane d $D & lane e $E & lane f $F &
wait
for n in a d e f; do grep -E "^\[|FAILED|bench:" $O/models_$n.txt | cut -c1-230; done
[ $SECONDS -lt 540 ] && C $((585-SECONDS)) bf16 'N*/[!f]*' infer eager,compile,cudnn d
pack
