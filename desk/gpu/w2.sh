b() { timeout $1 python3 -m fusedops bench "${@:2}" --out $OUT/rows_csv2/ > $OUT/bench_$N.txt 2>&1; echo "$N rc $? at $SECONDS"; }
mkdir -p $OUT/rows_csv2; set -f
for f in linear:50 mlp:45 gated:45 skinny:45 knn:22 ball:18 fps:18 group:18 interpolate:18; do N=wild_${f%:*} b 75 wild --family ${f%:*} --seed ${SEED:-2611} --count 300 --budget ${f#*:}; done
