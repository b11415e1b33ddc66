b() { timeout $1 python3 -m fusedops bench "${@:2}" --out $OUT/rows_csv/ > $OUT/bench_$N.txt 2>&1; echo "$N rc $? at $SECONDS"; }
mkdir -p $OUT/rows_csv; set -f
N=norm b 60 norm --peers eager --budget 55
N=points b 50 points --peers eager --budget 45
N=mlp b 60 mlp --peers eager --budget 50
N=linear b 120 linear --peers eager,cublaslt --dtype bf16 --budget 110
for f in reduce scan softmax norm segment; do N=wild_$f b 26 wild --family $f --seed 77 --count 60 --budget 20; done
