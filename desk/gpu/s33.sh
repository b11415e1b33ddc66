. .carry/lanes.sh
timeout 120 python3 .carry/next/bufpos.py > $O/bufpos.txt 2>&1; echo "rc $? $SECONDS"; cut -c1-230 $O/bufpos.txt | tail -90
pack
