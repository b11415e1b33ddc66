. .carry/lanes.sh
while ! grep -q done /tmp/ir.log; do sleep 1; done
chmod +x .carry/next/sanslot.sh; cp perf/results/h200/sanitizer.txt $O/sanitizer.txt; sed -i '/ conv /d' $O/sanitizer.txt
B="t5 mixtral whisper tv_swin_base swin_base convnext_base clip eva02_large gemma2 phi3 qwen3 mistral vit_large mixer_large gpt2_medium llama bert roberta opt titan_llama nanogpt_autocast"
R="pointnet2_bn pointnet2 dlrm gin distilbert tv_vit_base"
bc() { timeout $1 nice -n -10 python3 -m fusedops bench conv --pass step --dtype bf16 --peers eager,compile --case "$2" --out $O/conv/ >> $L/conv.txt 2>&1; echo "conv $2 rc $? $SECONDS"; }
( export OUT=$O/m1; mkdir -p $OUT; GPUS="0 1 2" PROCS=1 LIMIT=$((${ALL:-425}-SECONDS)) MODELS="$B" bash .carry/next/models4.sh > $O/models_b.txt 2>&1 ) &
( set -f; export CUDA_VISIBLE_DEVICES=3; bc 60 'N64_*_O80*'; bc 60 'N64_*_O64_*'; bc 60 'N64_*_O128_*'; bc 60 'N64_*_O24_*'; set +f
  ( export GPUS="3" SLOTS=4 FUSEDOPS_COMMIT=; timeout 165 python3 scripts/sanitize/tools.py --sanitizer $PWD/.carry/next/sanslot.sh --limit 160 --commit $(cat .carry/commit) --missing --jobs 4 --budget 160 --out $O/sanitizer.txt --family conv; echo "san rc $? $SECONDS" ) &
  timeout -s INT -k 15 120 python3 -m pytest -q -n 10 --maxfail=40 -p no:cacheprovider -m "gpu and not slow" tests/conv tests/modules/convs > $O/tests.txt 2>&1; tail -3 $O/tests.txt | cut -c1-150; wait
  export OUT=$O/m2; mkdir -p $OUT; QUEUE=/tmp/models4r.queue GPUS="3" PROCS=1 LIMIT=$((${ALL:-425}-SECONDS)) MODELS="$R" bash .carry/next/models4.sh > $O/models_r.txt 2>&1 ) > $L/l3.txt 2>&1 &
finish ${ALL:-430}
cat $L/l3.txt; tail -44 $O/models_b.txt | cut -c1-150; tail -24 $O/models_r.txt | cut -c1-150
awk -F, '$6=="compile"{print $8,$5,$7,$2}' $O/conv/conv.csv | sort -n
pack
