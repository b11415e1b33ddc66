. .carry/lanes.sh
sleep 5
( step A_points 150; step A_conv 150; step A_rows 150; step A_epi 80; step A_pack 100; step B 150 ) > $L/l0.txt 2>&1 &
finish 575
echo "##### l0"; cut -c1-150 $L/l0.txt | tail -130
pack
