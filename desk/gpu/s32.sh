. .carry/lanes.sh
wait $IRPID
C() { timeout $1 nice -n -10 python3 -m fusedops bench conv --dtype $2 --case "$3" --pass $4 --peers $5 --out $O/conv/ >> $O/conv_$2.txt 2>&1; echo "conv $2 $3 rc $? $SECONDS"; tail -2 $O/conv_$2.txt | cut -c1-200; }
C 100 bf16 'resnet50/*' step,infer eager,compile
C 100 fp16 'resnet50/*' step,infer eager,compile
timeout 60 python3 .carry/next/resnet_prof.py > $O/resnet.txt 2>&1; grep -A12 "total us" $O/resnet.txt | head -30; echo "prof $SECONDS"
timeout -s INT -k 10 70 python3 -m pytest -q -n 14 --maxfail=30 -p no:cacheprovider -m "gpu and not slow" tests/gemm/test_input_backward.py tests/modules/convs tests/models/test_fuse_vision.py tests/conv tests/contract/test_contract.py tests/gemm/test_mlp.py > $O/tests.txt 2>&1; grep -E "FAILED|passed|failed" $O/tests.txt | cut -c1-200 | tail -30; echo "tests $SECONDS"
timeout 60 python3 scripts/sanitize/tools.py --family gradients --out $O/sanitizer.txt --budget 55 --limit 55 > $O/san.txt 2>&1; tail -5 $O/san.txt | cut -c1-200
pack
