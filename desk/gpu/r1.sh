. .carry/lanes.sh
A="tests/gemm tests/contract tests/points tests/conv tests/reduce tests/scan tests/elementwise tests/stencil"
suite2() { n=$1; t=$2; shift 2; timeout -s INT -k 20 $t python3 -m pytest -v -n 14 -p no:cacheprovider -m "gpu and not slow" "$@" > $O/suite_$n.txt 2>&1; echo "suite $n rc $? at $SECONDS"; grep -E "FAILED|ERROR| passed| failed" $O/suite_$n.txt | sort -u | cut -c1-180 | tail -30; sed -i '/ PASSED \| SKIPPED /d' $O/suite_$n.txt; }
B=$(ls -d tests/*/ | sed 's|/$||' | grep -vxE "$(echo $A | tr ' ' '|')" | tr '\n' ' ')
sleep 14
( export CUDA_VISIBLE_DEVICES=0; suite2 a 340 $A; step points_san 90 ) > $L/l0.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=1; step epi_san 120; suite2 b 340 $B ) > $L/l1.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=2; step w1 340 ) > $L/l2.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=3; step w2 340 ) > $L/l3.txt 2>&1 &
finish ${LIMIT:-400}
tail -2 /tmp/ir.log
for f in l0 l1 l2 l3; do echo "##### $f"; cut -c1-140 $L/$f.txt | tail -40; done
pack
