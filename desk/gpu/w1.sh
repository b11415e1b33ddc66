b() { timeout $1 python3 -m fusedops bench "${@:2}" --out $OUT/rows_csv/ > $OUT/bench_$N.txt 2>&1; echo "$N rc $? at $SECONDS"; }
mkdir -p $OUT/rows_csv; set -f
for f in reduce scan softmax norm segment elementwise stencil; do N=wild_$f b 60 wild --family $f --seed ${SEED:-2611} --count 300 --budget 36; done
