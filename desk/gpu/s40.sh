. .carry/lanes.sh
export PYTHONPATH=$PYTHONPATH:/tmp/fe
C() { timeout -s INT -k 5 $1 nice -n -10 python3 -m fusedops bench conv --dtype $2 --case "$3" --pass $4 --peers $5 --out $O/conv/ >> $O/conv_$2_$4_$6.txt 2>&1; echo "conv $2 $3 rc $? $SECONDS"; grep "ours" $O/conv_$2_$4_$6.txt | cut -c1-150 | tail -${7:-12}; }
C 45 bf16 'N64_*k1_s1/*silu' infer eager,cudnn b
C 45 fp16 'N64_*k1_s1/*silu' infer eager,cudnn c
C 40 bf16 'resnet50/B64' infer eager,compile a
C 250 fp16 'N*' step eager,compile d 3
C $((415-SECONDS)) bf16 'N*k1_s1/*' infer compile e 30
pack
