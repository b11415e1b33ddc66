#!/bin/bash
# QuACK (the peer `quack` of the linear suites) for a machine that no network reaches.
#
#   perf/peers/install_quack.sh download FOLDER   here: the wheels, in FOLDER/1 and FOLDER/2 (< 64 MB each)
#   install_quack.sh keep FOLDER/1     there, with FOLDER/1 brought along: keep it in $KEEP
#   install_quack.sh keep FOLDER/2     there, likewise; once both are in $KEEP, unpack them
#   export FUSEDOPS_QUACK_SITE=$KEEP/site-packages
#   python -m fusedops bench linear --peers cublaslt,quack
#
# The machine has to stay up between the two transfers. It needs Python 3.12, torch and einops.
set -e

KEEP=${KEEP:-/tmp/quack}
WHEELS="quack-kernels==0.6.5 nvidia-cutlass-dsl==4.7.0 nvidia-cutlass-dsl-libs-base==4.7.0
  nvidia-cutlass-dsl-libs-core==4.7.0 nvidia-cutlass-dsl-libs-cu13==4.7.0 apache-tvm-ffi
  torch-c-dlpack-ext einops"

download() {
  mkdir -p "$1/1" "$1/2" "$1/all"
  # shellcheck disable=SC2086
  "${PYTHON:-python3}" -m pip download -q --no-deps --only-binary=:all: --python-version 312 \
    --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 -d "$1/all" $WHEELS
  # The largest wheel is cut in two, the others go with its second half.
  for wheel in "$1"/all/*.whl; do
    if [ "$(stat -c %s "$wheel")" -gt 60000000 ]; then
      split -n 2 -d "$wheel" "$1/$(basename "$wheel").part"
    else
      mv "$wheel" "$1/2/"
    fi
  done
  mv "$1"/*.part00 "$1/1/"
  mv "$1"/*.part01 "$1/2/"
  rm -r "$1/all"
  du -sh "$1"/*
}

keep() {
  mkdir -p "$KEEP"
  cp "$1"/* "$KEEP/"
  for first in "$KEEP"/*.part00; do
    [ -e "${first%00}01" ] || { echo "$KEEP: bring the other part"; return; }
    cat "${first%00}00" "${first%00}01" > "${first%.part00}"
  done
  # NOTE: unpacked, not installed: pip may be missing there, and the name matters to .pth files.
  for wheel in "$KEEP"/*.whl; do
    python3 -m zipfile -e "$wheel" "$KEEP/site-packages"
  done
  echo "export FUSEDOPS_QUACK_SITE=$KEEP/site-packages"
}

case "$1" in
  download | keep) "$1" "$2" ;;
  *) sed -n 2,10p "$0"; exit 2 ;;
esac
