. .carry/lanes.sh
T() { CUDA_VISIBLE_DEVICES=$1 timeout -s INT -k 10 $((ALL-SECONDS-8)) python3 -m pytest -q -n 14 --maxfail=40 -p no:cacheprovider -m "gpu and not slow" $3 > $O/tests$2.txt 2>&1; grep -E "FAILED|ERROR|passed|failed" $O/tests$2.txt | sort -u | cut -c1-200 | tail -20; echo "tests$2 $SECONDS"; }
( B="timeout 100 nice -n -10 python3 -m fusedops bench conv --dtype bf16"
  CUDA_VISIBLE_DEVICES=0 $B --case 'resnet50/*' --pass step,infer --peers eager,compile --out $O/conv/ > $O/conv.txt 2>&1; tail -3 $O/conv.txt | cut -c1-200; echo "conv $SECONDS"
  CUDA_VISIBLE_DEVICES=0 $B --case '*folded*' --pass infer --peers eager,cudnn --out $O/conv/ > $O/conv2.txt 2>&1; tail -3 $O/conv2.txt | cut -c1-200; echo "folded $SECONDS"
  CUDA_VISIBLE_DEVICES=0 timeout 60 python3 .carry/next/resnet_prof.py > $O/resnet.txt 2>&1; echo "prof $SECONDS"
  T 0 A "tests/gemm tests/modules" ) &
( T 1 B "tests/contract tests/integration tests/conv tests/points tests/reduce tests/bench" ) &
finish ${ALL:-400}
pack
