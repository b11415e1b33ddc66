# epi_ir.sh OUT.txz: LTO-IR of the visitors' main loops (10 files, and bf16_0 for racecheck; 20 to 80 s each, one at a time); CUT: CUTLASS headers, run in the repository root without a GPU.
set -e; out=$(realpath -m "$1"); d=$(mktemp -d); mkdir $d/ir; CUT=${CUT:-$(python3 -c 'import cutlass_library,os;print(os.path.join(os.path.dirname(cutlass_library.__file__),"source/include"))')}
for e in bf16:cutlass::bfloat16_t fp16:cutlass::half_t; do for c in 0 1 6 10 12 13; do [ $c != 0 ] || [ ${e%%:*} = bf16 ] || continue
  nvcc -ltoir -rdc=true -gencode=arch=compute_90a,code=lto_90a -O3 -DNDEBUG -std=c++20 --expt-relaxed-constexpr --expt-extended-lambda -diag-suppress=177,1427,20012,20013,20015 -DCUTLASS_ENABLE_GDC_FOR_SM90 \
    -DFUSEDOPS_VISITOR_ELEMENT=${e#*:} -DFUSEDOPS_VISITOR_CONFIG=$c -I. -isystem $CUT csrc/cutlass/visitor/sm90_visitor_ir.cu -o $d/ir/${e%%:*}_$c.ltoir; done; done
tar cJf "$out" -C $d ir; rm -r $d
