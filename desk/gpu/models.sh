# Expected seconds: <= 140 (LIMIT). One GPU. Host and busy time of five models by contender; host us per op. Runs side by side with others (then host is theirs, too).
S0=$SECONDS; LIMIT=${LIMIT:-140}; D=${OUT:-/tmp}/models_host; mkdir -p $D; N=$(dirname "$0")
export PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore TORCHINDUCTOR_COMPILE_THREADS=4 OMP_NUM_THREADS=2; T=/tmp/turns_host$$
nice -n -10 timeout 30 python3 $N/host_ops.py 2>&1 | tail -8 | fold -w 138
for m in llama bert titan_llama nanogpt_autocast dlrm; do nice -n -10 timeout 25 python3 $N/prof_models.py $T $m eager fuse > $D/$m.txt 2>&1; grep -a " busy " $D/$m.txt || tail -2 $D/$m.txt; done
for m in llama titan_llama bert nanogpt_autocast dlrm; do
  left=$((LIMIT-SECONDS+S0)); [ $left -lt 25 ] && { echo "$m: no time to compile"; continue; }
  ( TOP=14 TORCHINDUCTOR_CACHE_DIR=/tmp/ind_host_$m timeout -k 2 $left python3 $N/prof_models.py $T $m inductor compile_whole > $D/${m}_compiled.txt 2>&1 ) &
done; wait
grep -ahE " busy | took " $D/*_compiled.txt; for f in $D/*_compiled.txt; do grep -aq " busy " $f || { echo $f; tail -1 $f | cut -c1-130; }; done; echo "models ends at $((SECONDS-S0))"
