#!/bin/bash
# sanslot.sh ARGS: compute-sanitizer on whichever GPU has a free slot ($SLOTS each of $GPUS; none while /tmp/busyN exists).
while :; do for i in $(seq ${SLOTS:-12}); do for g in $(shuf -e $GPUS); do [ -e /tmp/busy$g ] && continue
  exec 9>/tmp/slot$g.$i; if flock -n 9; then export CUDA_VISIBLE_DEVICES=$g; exec compute-sanitizer "$@"; fi; done; done; sleep 1; done
