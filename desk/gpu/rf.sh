. .carry/lanes.sh
export PYTHONPATH=$PYTHONPATH:/tmp/fe
suite2() { n=$1; t=$2; shift 2; timeout -s INT -k 15 $t python3 -m pytest -v -n 13 -p no:cacheprovider -m "gpu and not slow" "$@" > $O/suite_$n.txt 2>&1; echo "suite $n rc $? at $SECONDS"; grep -E "FAILED|ERROR| passed| failed" $O/suite_$n.txt | sort -u | cut -c1-180 | tail -30; sed -i '/ PASSED \| SKIPPED /d' $O/suite_$n.txt; }
A="tests/gemm tests/contract"; P="tests/points tests/conv"; R="tests/reduce tests/scan tests/elementwise tests/stencil tests/rows tests/fp8"
X=$(ls -d tests/*/ | sed 's|/$||' | grep -vxE "$(echo $A $P $R tests/project | tr ' ' '|')" | tr '\n' ' ')
sleep 10
( export CUDA_VISIBLE_DEVICES=0; suite2 a 170 $A; step gemm 140 ) > $L/l0.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=1; suite2 p 170 $P; LANE=infer step conv_rows 120 ) > $L/l1.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=2; suite2 r 170 $R; step norm8 100; step fp8rows 80 ) > $L/l2.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=3; suite2 x 170 $X; step rows 140 ) > $L/l3.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=1; step epi_san3 220 ) > $L/l4.txt 2>&1 &
finish ${LIMIT:-325}
tail -2 /tmp/ir.log
for f in l0 l1 l2 l3 l4; do echo "##### $f"; cut -c1-150 $L/$f.txt | tail -45; done
pack
