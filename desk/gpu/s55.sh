# H100, module and tree of branch next (skinny kernels by four and eight blocks; ConvPass; GroupPass and masks are main's).
export SITE=/tmp/site
. .carry/lanes.sh
export PYTHONPATH=$NEW:$SITE
(for m in "resnet50 64 bf16 g" "resnet50 64 bf16" "efficientnet_b0 64 bf16 g"; do timeout 150 python3 .carry/next/rn_ab.py $m > "$O/rn_${m// /_}.txt" 2>&1; grep -E "RESULT|^{|Error" "$O/rn_${m// /_}.txt" | cut -c1-250; done; echo "rn $SECONDS") 
timeout 60 python3 .carry/next/sk8.py new > $O/sk8.txt 2>&1; cut -c1-330 $O/sk8.txt; echo "sk8 $SECONDS"
(timeout 100 compute-sanitizer --tool memcheck --error-exitcode 1 python3 -m pytest -q -x tests/gemm/test_skinny.py -k "every_config" > $O/san_sk.txt 2>&1; echo "san rc $?"; tail -3 $O/san_sk.txt) &
T() { timeout -s INT -k 10 $1 python3 -m pytest -q -n ${3:-15} --maxfail=60 -p no:cacheprovider -m "gpu and not slow" $2 > $O/tests_$4.txt 2>&1; grep -E "FAILED|ERROR|passed|failed" $O/tests_$4.txt | cut -c1-200 | tail -30; echo "tests $4 $SECONDS"; }
T 170 "tests/conv tests/gemm tests/models tests/integration tests/points tests/contract" 13 a
wait
M() { timeout -s INT -k 5 $1 python3 -m fusedops bench models --dtype bf16 --case "$2/*" --pass step --peers eager,compile,compile_whole,compile_graphs --out $O/models/ > $O/m_$2.txt 2>&1; echo "models $2 rc $? $SECONDS"; tail -6 $O/m_$2.txt | cut -c1-200; }
for m in pointnet2_bn pointnet2 t5; do [ $SECONDS -lt 500 ] && M 90 $m; done
pack
