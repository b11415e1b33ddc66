. .carry/lanes.sh
( CUDA_VISIBLE_DEVICES=0 timeout 90 python3 .carry/next/parts_fit.py new 50 11 > $O/fit1.txt 2>&1; echo "fit rc $? $SECONDS" ) &
( CUDA_VISIBLE_DEVICES=1 timeout 90 python3 .carry/next/parts_fit.py new 50 12 > $O/fit2.txt 2>&1; echo "fit rc $? $SECONDS" ) &
finish ${ALL:-110}
wc -l $O/*.txt; tail -1 $O/fit1.txt
pack
