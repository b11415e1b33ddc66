# builds the LTO-IR of the main loops of $1 (source root) with 11 processes into $2, by one rename
CARRY=$PWD/.carry; mkdir -p /tmp/cut && tar xJf .carry/cutlass.txz -C /tmp/cut; d=$(mktemp -d); mkdir $d/ir; cd $1
one() { nvcc -ltoir -rdc=true -gencode=arch=compute_90a,code=lto_90a -O3 -DNDEBUG -std=c++20 --expt-relaxed-constexpr --expt-extended-lambda -diag-suppress=177,1427,20012,20013,20015 -DCUTLASS_ENABLE_GDC_FOR_SM90 \
    -DFUSEDOPS_VISITOR_ELEMENT=${1#*:} -DFUSEDOPS_VISITOR_CONFIG=$2 -I. -isystem /tmp/cut/include csrc/cutlass/visitor/sm90_visitor_ir.cu -o $d/ir/${1%%:*}_$2.ltoir; }
export -f one; export d
for n in $(sed -n "s|.*foreach(config \([0-9 ]*\)).*|\1|p" cmake/Visitor.cmake); do for e in bf16:cutlass::bfloat16_t fp16:cutlass::half_t; do echo $e $n; done; done | xargs -P 12 -L 1 bash -c 'one $0 $1'
ls $d/ir | wc -l; rm -rf $2; mv -T $d/ir $2; echo "ir done at $SECONDS"
