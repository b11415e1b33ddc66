. .carry/lanes.sh
wait $IRPID
timeout -s INT -k 10 60 python3 -m pytest -q -n 14 --maxfail=30 -p no:cacheprovider -m "gpu and not slow" tests/conv/test_moments.py tests/modules/convs tests/conv/test_batch_norm_act.py tests/conv/test_conv_bn_act.py tests/models/test_fuse_vision.py > $O/tests.txt 2>&1; grep -E "FAILED|passed|failed" $O/tests.txt | cut -c1-200 | tail -30; echo "tests $SECONDS"
timeout 100 nice -n -10 python3 -m fusedops bench conv --dtype bf16 --case 'resnet50/*' --pass step --peers compile --out $O/conv/ > $O/conv.txt 2>&1; tail -2 $O/conv.txt | cut -c1-200; echo "conv $SECONDS"
timeout 60 python3 .carry/next/resnet_prof.py > $O/resnet.txt 2>&1; grep -A14 "total us" $O/resnet.txt | head -16; echo "prof $SECONDS"
pack
