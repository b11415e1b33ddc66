. .carry/lanes.sh
( export CUDA_VISIBLE_DEVICES=0; suite; true ) > $L/l0.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=1; step norm9 160; step points 200; step epi 180 ) > $L/l1.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=2; PYTHONPATH=$PYTHONPATH:/tmp/fe step conv5 260; step rows2 210 ) > $L/l2.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=3; LIMIT=225 JOBS=24 step san 270; unset CUDA_VISIBLE_DEVICES; MODELS="bert whisper titan_llama llama tv_vit_base mixtral dlrm qwen3 roberta clip" GPUS="3 0" LIMIT=200 CAP=150 step models4 225 ) > $L/l3.txt 2>&1 &
finish 478
for f in l0 l1 l2 l3; do echo "##### $f"; cut -c1-125 $L/$f.txt | tail -30; done
pack
