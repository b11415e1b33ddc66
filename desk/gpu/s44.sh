. .carry/lanes.sh
# H100: the rows of convolutions that issue 33 lacks there.
wait $IRPID
export PYTHONPATH=$PYTHONPATH:/tmp/fe
C() { timeout -s INT -k 5 $1 nice -n -10 python3 -m fusedops bench conv --dtype $2 --case "$3" --pass $4 --peers $5 --out $O/conv/ >> $O/conv_$2_$4_$6.txt 2>&1; echo "conv $2 $3 rc $? $SECONDS"; tail -2 $O/conv_$2_$4_$6.txt | cut -c1-200; }
C 80 bf16 'N*' infer eager,cudnn a
C 80 fp16 'N*' infer eager,cudnn b
C 80 fp16 'resnet50/*' step,infer eager,compile c
C 80 fp16 'N*' step eager d
C $((575-SECONDS)) bf16 'N*' step eager,compile e
pack
