. .carry/lanes.sh
chmod +x .carry/next/sanslot.sh; touch /tmp/busy3; cp .carry/next/sanitizer.txt $O/sanitizer.txt
TT="python3 scripts/sanitize/tools.py --sanitizer $PWD/.carry/next/sanslot.sh --limit 70 --commit $(cat .carry/commit) --out $O/sanitizer.txt --missing"
( export GPUS="0 1 2" SLOTS=8 FUSEDOPS_COMMIT=; timeout 70 $TT --jobs 24 --budget ${SAN:-56} --family edges,thin,rows,embeddings,gemm,kernels > $L/san1.txt 2>&1 ) &
( export CUDA_VISIBLE_DEVICES=3
  timeout 34 ncu --clock-control none -k regex:"edge_wgmma_forward|invert_index_kernel|edge_backward_kernel|edge_wgmma_narrow|edge_close|edge_forward_kernel" --section WarpStateStats --section SchedulerStats --section SpeedOfLight --section InstructionStats --section ComputeWorkloadAnalysis --section LaunchStats --section Occupancy python3 .carry/next/ncu_edges.py > $O/ncu.txt 2>&1; echo "ncu rc $? $SECONDS"
) > $L/l4.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=3; touch /tmp/x
  timeout -s INT -k 3 60 python3 -m pytest -q -x --maxfail=15 -n 18 -p no:cacheprovider -m "gpu and not slow" tests/points/test_edge* tests/points/test_set_abstraction* tests/points/test_points_grouping.py tests/gemm/test_thin.py tests/gemm/test_large_fp32.py > $L/t.txt 2>&1; echo "tests rc $? $SECONDS"; grep -E "FAILED|ERROR| passed| failed" $L/t.txt | cut -c1-220 | tail -20
) > $L/l3.txt 2>&1 &
finish ${LIMIT:-74}
cat $L/l3.txt $L/l4.txt; tail -1 /tmp/ir.log; tail -3 $L/t.txt | cut -c1-200; cat $L/san1.txt | cut -c1-170 | grep -v "Host Frame" | head -60
head -1 $O/sanitizer.txt
pack
