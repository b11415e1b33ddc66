. .carry/lanes.sh
set -f
python3 -c "
import sys; sys.path.insert(0,'/tmp/fo')"
timeout 60 python3 .carry/next/bn_ab.py > $O/bn_ab.txt 2>&1; echo "bn_ab $SECONDS"
while ! grep -q done /tmp/ir.log; do sleep 1; done
timeout 70 python3 -m fusedops check > $O/check.txt 2>&1; echo "check rc $? $SECONDS"
bash .carry/next/fp8rows.sh; echo "fp8 $SECONDS"
bp() { timeout $1 nice -n -10 python3 -m fusedops bench pointnet --peers eager,compile --case "$2" --out $O/pn$3/ > $L/pn_$3.txt 2>&1; echo "pn $2 rc $? $SECONDS"; }
bp 130 'sa/*' 3; bp 75 'ssg*/*' 1
cat $O/bn_ab.txt | tail -45; tail -8 $O/check.txt; cat $O/pn[13]/pointnet.csv | awk -F, '{print $2,$4,$5,$6,$7,$8}'
pack
