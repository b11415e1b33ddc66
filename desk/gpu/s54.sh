# H100: batch norm by clusters, split K of gradients, tests, sanitizers, layers' rows, then models.
export SITE=/tmp/site
. .carry/lanes.sh
for v in new old; do [ $v = new ] && P=$NEW || P=$OLD; for w in bn mm; do PYTHONPATH=$P:$SITE timeout 40 python3 .carry/next/parts.py $v bf16 $w > $O/${w}_$v.txt 2>&1; grep "^$v" $O/${w}_$v.txt | cut -c1-160; done; done; echo "parts $SECONDS"
wait $IRPID; tail -1 /tmp/ir.log
export PYTHONPATH=$NEW:$SITE
S() { timeout $1 python3 scripts/sanitize/tools.py --tool $2 --family $3 --jobs 2 --out $O/sanitizer_$2_$3.txt --budget $(($1-4)) --limit $(($1-6)) > $O/san_$2_$3.txt 2>&1; tail -3 $O/san_$2_$3.txt | cut -c1-200; echo "san $2 $3 $SECONDS"; }
S 165 memcheck,racecheck conv &
(timeout 120 compute-sanitizer --tool memcheck --error-exitcode 1 python3 scripts/sanitize kernels --match split-k > $O/san_split.txt 2>&1; echo "split-k rc $? $SECONDS"; tail -4 $O/san_split.txt | cut -c1-200) &
export PYTHONPATH=$NEW:$SITE:/tmp/fe
for i in 0 1 2 3 4; do timeout 165 nice python3 .carry/next/warm.py $i 5 step:bf16 step:fp16 infer:fp16 infer:bf16 > $O/warm_$i.txt 2>&1 & done
T() { timeout -s INT -k 10 $1 python3 -m pytest -q -n ${3:-15} --maxfail=60 -p no:cacheprovider -m "gpu and not slow" $2 > $O/tests_$4.txt 2>&1; grep -E "FAILED|ERROR|passed|failed" $O/tests_$4.txt | cut -c1-200 | tail -30; echo "tests $4 $SECONDS"; }
T 150 "tests/conv tests/gemm tests/modules" 10 a
wait; echo "warm $SECONDS"; tail -qn 1 $O/warm_*.txt | cut -c1-200
C() { timeout -s INT -k 5 $1 python3 -m fusedops bench conv --dtype $2 --case "$3" --pass $4 --peers $5 --out $O/conv/ > $O/conv_$2_$4_$6.txt 2>&1; echo "conv $2 $3 $4 rc $? $SECONDS"; tail -1 $O/conv_$2_$4_$6.txt | cut -c1-200; }
C 90 bf16 'N*' step eager,compile a
C 90 fp16 'N*' step eager,compile b
C 70 fp16 'N*/[!f]*' infer eager,compile,cudnn c
C 70 bf16 'N*/[!f]*' infer eager,compile,cudnn d
[ $SECONDS -lt 530 ] && C $((590-SECONDS)) fp16 'resnet50*' step,infer eager,compile r
pack
