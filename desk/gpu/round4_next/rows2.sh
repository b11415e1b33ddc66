b() { timeout $1 python3 -m fusedops bench "${@:2}" --out $OUT/rows_csv/ > $OUT/bench_$N.txt 2>&1; echo "$N rc $? at $SECONDS"; }
mkdir -p $OUT/rows_csv; export PYTHONPATH=$PYTHONPATH:/tmp/fe; set -f
N=pn b 130 pointnet --peers eager --dtype bf16
N=conv b 110 conv --peers eager,cudnn --dtype bf16 --case N*
N=epi b 60 epilogue --dtype bf16
N=fp8 b 50 fp8 --case *norm/* ; N=fp8q b 20 fp8 --case quantize/*
N=conv16 b 60 conv --peers eager,cudnn --dtype fp16 --case N* --pass infer
