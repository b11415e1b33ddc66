# thin memcheck in words, then every family as far as time reaches
export PYTORCH_NO_CUDA_MEMORY_CACHING=1; timeout 60 compute-sanitizer --tool memcheck --print-limit 2 python3 scripts/sanitize thin 2>&1 | grep -E "Invalid|Address|and is|by thread|at .*kernel|SUMMARY" | cut -c1-200 | head -8
unset PYTORCH_NO_CUDA_MEMORY_CACHING; export OMP_NUM_THREADS=1
timeout $((LIMIT+10)) python3 scripts/sanitize/tools.py --out $OUT/sanitizer.txt --jobs ${JOBS:-26} --budget $LIMIT > $OUT/san_all.txt 2>&1; tail -5 $OUT/san_all.txt | cut -c1-150
