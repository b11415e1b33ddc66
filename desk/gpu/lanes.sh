# lanes.sh: setup for rounds
. .carry/setup.sh
mkdir -p /tmp/irt && tar xJf .carry/epi/ir.txz -C /tmp/irt && mkdir -p /tmp/fo/fusedops/_epilogue && rm -rf /tmp/fo/fusedops/_epilogue/ir && mv -T /tmp/irt/ir /tmp/fo/fusedops/_epilogue/ir
mkdir -p /tmp/fe && tar xJf .carry/fe.txz -C /tmp/fe
nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c; nproc
L=/tmp/lanes; rm -rf $L; mkdir -p $L $OUT/o; export OUT=$OUT/o; O=$OUT
step() { echo "=== $1 at $SECONDS"; ( timeout $2 bash .carry/$1.sh ) > $O/$1.txt 2>&1; cut -c1-170 $O/$1.txt | tail -70; }
suite() { timeout 330 python3 -m pytest -q -n 15 -p no:cacheprovider -m "gpu and not slow" tests > $O/suite.txt 2>&1; echo "suite rc $? at $SECONDS"; grep -E "^FAILED|^ERROR|passed|failed" $O/suite.txt | cut -c1-180 | tail -30; }
finish() { while [ $SECONDS -lt $1 ] && [ -n "$(jobs -rp)" ]; do sleep 3; done; cp $L/*.txt $O/ 2>/dev/null; }
pack() { cd $O/..; find o \( -name '*.pt' -o -size +20M \) -delete; tar cJf o.tar.xz o; rm -rf o; }
