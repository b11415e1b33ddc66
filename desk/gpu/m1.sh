. .carry/setup.sh
( bash .carry/ir_here.sh $PWD /tmp/fo/fusedops/_epilogue/ir > /tmp/ir.log 2>&1 )
nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c
mkdir -p $OUT/o; export OUT=$OUT/o
LIMIT=${LIMIT:-400} bash .carry/next/models4.sh > $OUT/models4.txt 2>&1
tail -60 $OUT/models4.txt | cut -c1-150
cd $OUT/..; find o \( -name '*.pt' -o -size +20M \) -delete; tar cJf o.tar.xz o; rm -rf o
