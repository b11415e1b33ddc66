# conv: about 110 s, one GPU (script alone; nvidia_cudnn_frontend*.whl beside it for cuDNN's graphs, runs without). Prints <= 45 lines.
here=$(dirname "$(readlink -f "$0")"); [ -e "$here/conv_forms.py" ] || here=.carry/next
fe=/tmp/cudnn_fe_conv; mkdir -p $fe; for w in "$here"/nvidia_cudnn_frontend*.whl; do [ -e "$w" ] && (cd $fe && python3 -m zipfile -e "$w" . && echo "frontend: $(basename $w)"); done; export PYTHONPATH=$fe:$PYTHONPATH
timeout 85 python3 "$here/conv_forms.py" infer 2>&1 | grep -vi warn | cut -c1-420 | head -26
