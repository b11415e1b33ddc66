. .carry/lanes.sh
chmod +x .carry/next/sanslot.sh; cp .carry/next/san4.txt $O/sanitizer.txt; sed -i '/ edges /d; /memcheck conv/d; /errors/d; /cuGetProc/d' $O/sanitizer.txt
suite2() { n=$1; t=$2; shift 2; timeout -s INT -k 15 $t python3 -m pytest -v -n 16 --maxfail=40 -p no:cacheprovider -m "gpu and not slow" "$@" > $O/suite_$n.txt 2>&1; echo "suite $n rc $? at $SECONDS"; grep -E "FAILED|ERROR| passed| failed" $O/suite_$n.txt | grep -v " PASSED" | sort -u | cut -c1-180 | tail -30; sed -i '/ PASSED \| SKIPPED /d' $O/suite_$n.txt; }
bp() { timeout $1 nice -n -10 python3 -m fusedops bench pointnet --peers eager,compile --case "$2" --out $O/pn$3/ > $L/pn_$3.txt 2>&1; echo "pn $2 rc $? $SECONDS"; }
set -f
( export CUDA_VISIBLE_DEVICES=0; timeout 40 python3 .carry/next/bn_ab.py > $O/bn_ab.txt 2>&1; echo "bn $SECONDS"; bp 85 'msg*/*' 1; bp 75 'ssg*/*' 1 ) > $L/l0.txt 2>&1 &
( set +f; export CUDA_VISIBLE_DEVICES=1; suite2 p 170 tests/points tests/contract ) > $L/l1.txt 2>&1 &
( export GPUS="1 2" SLOTS=6 FUSEDOPS_COMMIT=; timeout 180 python3 scripts/sanitize/tools.py --sanitizer $PWD/.carry/next/sanslot.sh --limit 170 --commit $(cat .carry/commit) --missing --jobs 12 --budget 170 --out $O/sanitizer.txt --family conv,edges; echo "san rc $? $SECONDS" ) > $L/san1.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=3; bp 130 'sa/*' 3; timeout 30 python3 .carry/next/points_prof.py $O/points_prof.txt 2>&1 | tail -12 ) > $L/l3.txt 2>&1 &
finish ${LIMIT:-200}
set +f
for f in l0 l1 l3 san1; do echo "##### $f"; cut -c1-170 $L/$f.txt | tail -25; done
cat $O/bn_ab.txt
cat $O/pn[13]/pointnet.csv | awk -F, '$6=="compile"{print $8,$5,$7,$2,$4}'
tail -1 /tmp/ir.log; pack
