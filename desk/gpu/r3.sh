. .carry/lanes.sh
sleep 12
( export CUDA_VISIBLE_DEVICES=0; step lead3 270 ) > $L/l0.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=1; step gemm 160; step epi_san2 110 ) > $L/l1.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=2; step norm8 180; step models 90 ) > $L/l2.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=3; step rows 170; step conv 90 ) > $L/l3.txt 2>&1 &
finish ${LIMIT:-275}
tail -2 /tmp/ir.log
for f in l0 l1 l2 l3; do echo "##### $f"; cut -c1-140 $L/$f.txt | tail -50; done
pack
