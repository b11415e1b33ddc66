. .carry/lanes.sh
wait $IRPID
export PYTHONPATH=$PYTHONPATH:/tmp/fe
timeout -s INT -k 10 75 python3 -m pytest -q -n 14 --maxfail=30 -p no:cacheprovider -m "gpu and not slow" tests/conv tests/modules/convs tests/models/test_fuse_vision.py tests/tuning > $O/tests.txt 2>&1; grep -E "FAILED|passed|failed" $O/tests.txt | cut -c1-200 | tail -30; echo "tests $SECONDS"
timeout 60 nice -n -10 python3 .carry/next/pw_ab.py > $O/pw.txt 2>&1; grep "ours" $O/pw.txt | cut -c1-200 | tail -52; echo "pw $SECONDS"
for i in 1 2; do for v in fo fo2; do PYTHONPATH=/tmp/$v:/tmp/site timeout 40 nice -n -10 python3 .carry/next/bn_chain.py $v$i > $O/bn_$v$i.txt 2>&1; grep "^fo" $O/bn_$v$i.txt; done; done; echo "bn $SECONDS"
C() { timeout $1 nice -n -10 python3 -m fusedops bench conv --dtype $2 --case "$3" --pass $4 --peers $5 --out $O/conv/ >> $O/conv_$2.txt 2>&1; echo "conv $2 $3 rc $? $SECONDS"; tail -2 $O/conv_$2.txt | cut -c1-200; }
C 100 bf16 'resnet50/*' step,infer eager,compile
pack
