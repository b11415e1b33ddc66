# H200: sanitizers of conv beside tests; ConvNeXt; rows of depthwise layers.
. .carry/lanes.sh
kill $IRPID 2>/dev/null
export PYTHONPATH=$NEW:$SITE:/tmp/fe
(timeout 170 python3 scripts/sanitize/tools.py --tool memcheck,racecheck --family conv --jobs 2 --out $O/sanitizer.txt --budget 165 --limit 160 > $O/san.txt 2>&1; tail -4 $O/san.txt | cut -c1-200; echo "san $SECONDS") & SAN=$!
T() { timeout -s INT -k 10 $1 python3 -m pytest -q -n ${3:-15} --maxfail=60 -p no:cacheprovider -m "gpu and not slow" $2 > $O/tests_$4.txt 2>&1; grep -E "FAILED|ERROR|passed|failed" $O/tests_$4.txt | cut -c1-200 | tail -30; echo "tests $4 $SECONDS"; }
T 170 "tests/conv tests/modules tests/integration/test_inductor_depthwise.py tests/integration/test_inductor_patches.py tests/models/test_fuse_vision.py tests/contract" 13 a
wait $SAN
timeout -s INT -k 5 150 python3 -m fusedops bench models --case 'convnext_base*' --pass step --out $O/models/ > $O/models.txt 2>&1; tail -25 $O/models.txt | cut -c1-170; echo "models $SECONDS"
C() { timeout -s INT -k 5 $1 nice -n -10 python3 -m fusedops bench conv --dtype $2 --case "$3" --pass $4 --peers $5 --out $O/conv/ >> $O/conv_$2_$4.txt 2>&1; echo "conv $2 $3 rc $? $SECONDS"; tail -8 $O/conv_$2_$4.txt | cut -c1-150; }
C 40 bf16,fp16 'N*_g*' infer eager,cudnn
C 60 bf16,fp16 'N*_g*' step eager,compile
C 40 bf16,fp16 'N64_C2048*' infer eager,cudnn
pack
