# wild_gemm: about 75 s (240 random products, SEED). Prints the distribution of each family; CSV, kernels go to $OUT/wild_gemm/.
out=${OUT:-/tmp}; mkdir -p "$out/wild_gemm"; seed=${SEED:-$((RANDOM * 7 + 1))}
echo "seed $seed, $(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)"
timeout ${LIMIT:-150} python3 -m fusedops bench wild --family linear,mlp,gated,skinny --count ${COUNT:-60} --seed $seed --out "$out/wild_gemm/" > "$out/wild_gemm/log.txt" 2>&1
python3 -m fusedops bench --summary "$out"/wild_gemm/*.csv 2>&1 | cut -c1-150 | head -60
