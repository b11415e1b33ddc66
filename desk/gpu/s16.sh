. .carry/lanes.sh
( CUDA_VISIBLE_DEVICES=0 timeout 100 python3 .carry/next/wide_ab.py wide > $O/wide_a.txt 2>&1; echo "a rc $? $SECONDS"
  CUDA_VISIBLE_DEVICES=0 timeout 30 ncu --clock-control none --set full -k regex:wide_kernel -c 3 python3 .carry/next/wide_ncu.py > $O/ncu.txt 2>&1; echo ncu $SECONDS
  CUDA_VISIBLE_DEVICES=0 timeout -s INT -k 15 60 python3 -m pytest -q -n 10 --maxfail=30 -p no:cacheprovider -m "gpu and not slow" tests/gemm/test_thin.py > $O/tests.txt 2>&1; tail -1 $O/tests.txt | cut -c1-200 ) &
( CUDA_VISIBLE_DEVICES=1 timeout 85 python3 -m fusedops bench conv --case 'resnet50/*' --dtype bf16 --pass step,infer --peers eager,compile --out $O/conv/ > $O/conv.txt 2>&1; tail -3 $O/conv.txt | cut -c1-300; echo "conv $SECONDS" 
  CUDA_VISIBLE_DEVICES=1 timeout 25 compute-sanitizer --tool racecheck python3 .carry/next/wide_san.py > $O/san.txt 2>&1; tail -1 $O/san.txt ) &
finish ${ALL:-150}
cat $O/wide_a.txt | cut -c1-150; grep -E "Duration|Executed Ipc Active|Registers Per|Achieved Occ|Eligible|Issued Warp|Stall|DRAM Throughput|stalled" $O/ncu.txt | head -60
pack
