. .carry/lanes.sh
export PYTHONPATH=$PYTHONPATH:/tmp/fe
chmod +x .carry/next/sanslot.sh; cp perf/results/h200/sanitizer.txt $O/sanitizer.txt; sed -i '/ edges /d' $O/sanitizer.txt
suite2() { n=$1; t=$2; shift 2; timeout -s INT -k 15 $t python3 -m pytest -v -n 16 --maxfail=40 -p no:cacheprovider -m "gpu and not slow" "$@" > $O/suite_$n.txt 2>&1; echo "suite $n rc $? at $SECONDS"; grep -E "FAILED|ERROR| passed| failed" $O/suite_$n.txt | grep -v " PASSED" | sort -u | cut -c1-180 | tail -30; sed -i '/ PASSED \| SKIPPED /d' $O/suite_$n.txt; }
bp() { timeout $1 nice -n -10 python3 -m fusedops bench pointnet --peers eager,compile --case "$2" --out $O/pn$3/ > $L/pn_$3.txt 2>&1; echo "pn $2 rc $? $SECONDS"; }
set -f
( export CUDA_VISIBLE_DEVICES=0; bp 75 'ssg*/*' 1; bp 90 'msg*/*' 1; timeout 40 python3 .carry/next/points_prof.py $O/points_prof.txt 2>&1 | tail -12; echo "prof $SECONDS" ) > $L/l0.txt 2>&1 &
( set +f; export CUDA_VISIBLE_DEVICES=1; suite2 p 170 tests/points; touch /tmp/tests_done ) > $L/l1.txt 2>&1 &
( export GPUS="1" SLOTS=9 FUSEDOPS_COMMIT=; timeout 205 python3 scripts/sanitize/tools.py --sanitizer $PWD/.carry/next/sanslot.sh --limit 180 --commit $(cat .carry/commit) --missing --jobs 9 --budget 195 --out $O/sanitizer.txt --family edges; echo "san rc $? $SECONDS" ) > $L/san1.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=3; bp 165 'sa/*' 3 ) > $L/l3.txt 2>&1 &
( set +f; export CUDA_VISIBLE_DEVICES=2; timeout 150 nice -n -10 python3 .carry/next/conv5_prof.py > $O/conv_prof.txt 2>&1; echo "conv rc $? $SECONDS"; bash .carry/next/fp8rows.sh | tail -20; echo "fp8 $SECONDS" ) > $L/l2.txt 2>&1 &
finish ${LIMIT:-222}
set +f
for f in l0 l1 l2 l3 san1; do echo "##### $f"; cut -c1-170 $L/$f.txt | tail -45; done
tail -1 /tmp/ir.log; pack
