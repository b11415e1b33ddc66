. .carry/lanes.sh
sleep 12
( export CUDA_VISIBLE_DEVICES=0; step lead 200 ) > $L/l0.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=1; step lead2 170 ) > $L/l1.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=2; step gemm 120; step epi_san2 90 ) > $L/l2.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=3; step conv_prof 65; step w3 100 ) > $L/l3.txt 2>&1 &
finish ${LIMIT:-230}
tail -2 /tmp/ir.log
for f in l0 l1 l2 l3; do echo "##### $f"; cut -c1-140 $L/$f.txt | tail -60; done
pack
