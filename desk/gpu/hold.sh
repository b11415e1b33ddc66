# hold.sh out|back: tracked folders leave the checkout during a call of the tool
cd /work/main; if [ $1 = out ]; then mkdir -p /work/hold; mv perf docs tests csrc python examples /work/hold/; else mv /work/hold/* /work/main/; git status --short | head -3; fi
