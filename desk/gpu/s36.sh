. .carry/lanes.sh
wait $IRPID
export PYTHONPATH=$PYTHONPATH:/tmp/fe
timeout -s INT -k 10 75 python3 -m pytest -q -n 14 --maxfail=30 -p no:cacheprovider -m "gpu and not slow" tests/conv tests/modules/convs tests/models/test_fuse_vision.py tests/gemm/test_input_backward.py tests/gemm/test_mlp.py tests/gemm/test_linear.py tests/contract/test_contract.py > $O/tests.txt 2>&1; grep -E "FAILED|passed|failed" $O/tests.txt | cut -c1-200 | tail -30; echo "tests $SECONDS"
timeout 90 nice -n -10 python3 .carry/next/pw_ab.py > $O/pw.txt 2>&1; grep -v Warn $O/pw.txt | cut -c1-200 | tail -52; echo "pw $SECONDS"
for i in 1 2; do for v in fo fo2; do PYTHONPATH=/tmp/$v:/tmp/site timeout 40 nice -n -10 python3 .carry/next/bn_chain.py $v$i > $O/bn_$v$i.txt 2>&1; grep "^fo" $O/bn_$v$i.txt; done; done; echo "bn $SECONDS"
for i in 1 2; do for v in fo fo2; do PYTHONPATH=/tmp/$v:/tmp/site timeout 60 nice -n -10 python3 -m fusedops bench conv --dtype bf16 --case 'resnet50/*' --pass step --peers eager --out $O/conv_$v$i/ > $O/conv_$v$i.txt 2>&1; tail -1 $O/conv_$v$i.txt | cut -c1-120; done; done; echo "resnet $SECONDS"
pack
