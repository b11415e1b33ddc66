# lanes.sh: setup for rounds
export SITE=/tmp/site
. .carry/setup.sh
( bash .carry/ir_here.sh $PWD /tmp/fo/fusedops/_epilogue/ir > /tmp/ir.log 2>&1 ) & IRPID=$!
mkdir -p /tmp/fe && tar xJf .carry/fe.txz -C /tmp/fe
export OLD=/tmp/fo2 NEW=/tmp/fo SITE=/tmp/site
nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c; nproc
L=/tmp/lanes; rm -rf $L; mkdir -p $L $OUT/o; export OUT=$OUT/o; O=$OUT
step() { n=$1; echo "=== $n at $SECONDS"; ( timeout $2 bash .carry/next/$n.sh ) > $O/$n.txt 2>&1; cut -c1-170 $O/$n.txt | tail -70; }
suite() { timeout -s INT -k 25 $1 python3 -m pytest -v -n ${2:-15} -p no:cacheprovider -m "gpu and not slow" tests > $O/suite.txt 2>&1; echo "suite rc $? at $SECONDS"; grep -E "FAILED|ERROR|passed|failed" $O/suite.txt | sort -u | cut -c1-180 | tail -40; sed -i '/ PASSED \| SKIPPED /d' $O/suite.txt; }
finish() { while [ $SECONDS -lt $1 ] && [ -n "$(jobs -rp)" ]; do sleep 3; done; cp $L/*.txt $O/ 2>/dev/null; }
pack() { cd $O/..; find o \( -name '*.pt' -o -size +20M \) -delete; tar cJf o.tar.xz o; rm -rf o; }
