# thinab: about 90 s: memcheck messages of thin, new and old; times of both in turn.
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
for v in fo fo2; do echo "== memcheck $v"; PYTHONPATH=/tmp/$v:/tmp/site timeout 60 compute-sanitizer --tool memcheck --print-limit 3 python3 scripts/sanitize thin 2>&1 | grep -E "Invalid|Address|and is|by thread|at .*kernel|SUMMARY" | cut -c1-200 | head -8; done
unset PYTORCH_NO_CUDA_MEMORY_CACHING
for v in fo fo2; do echo "== times $v"; SEED=7 PYTHONPATH=/tmp/$v:/tmp/site OUT=/tmp/thin_$v bash -c 'mkdir -p $OUT; sed "/pytest/d" .carry/thin.sh > /tmp/thin_times.sh; bash /tmp/thin_times.sh' 2>&1 | tail -34; done
