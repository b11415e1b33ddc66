. .carry/lanes.sh
export PYTHONPATH=$PYTHONPATH:/tmp/fe
timeout 120 python3 .carry/next/pw_ab.py > $O/pw.txt 2>&1; echo "rc $? $SECONDS"; cut -c1-200 $O/pw.txt | tail -60
pack
