#!/bin/bash
# The packages of the suite `models` and its peer Liger for a machine that no network reaches.
#
#   perf/models/install.sh download FOLDER        here: what a machine with transformers still lacks
#   perf/models/install.sh download FOLDER all    here: also for one that has torch and numpy alone
#   perf/models/install.sh unpack FOLDER          there, with FOLDER brought along: into $SITE
#   export PYTHONPATH=$SITE                       as `unpack` says
#   python -m fusedops bench models
#
# Each set stays under 64 MB. The machine needs Python 3.12 and torch 2.11 (torchvision's and
# torch_geometric's versions are those for it); models without their package are skipped.
set -e

SITE=${SITE:-/tmp/models-site}
PURE="timm==1.0.31 liger-kernel==0.8.5"
ALL="transformers==5.24.0 huggingface_hub==2.4.0 tokenizers safetensors regex pyyaml requests
  httpx2 httpcore2 httpx httpcore h11 anyio idna certifi truststore sniffio typer shellingham click
  urllib3 charset-normalizer tqdm packaging filelock hf-xet psutil accelerate==1.15.0
  torchvision==0.26.* torch_geometric==2.8.1 xxhash"

download() {
  wanted=$PURE
  [ "$2" = all ] && wanted="$PURE $ALL"
  mkdir -p "$1"
  platforms=(--platform any)
  for glibc in 2_39 2_34 2_31 2_28 2_27 2_24 2_17; do
    platforms+=(--platform "manylinux_${glibc}_x86_64")
  done
  # Pure wheels of PyPI that ask for a newer torch or for Triton must not bring them along.
  # shellcheck disable=SC2086
  "${PYTHON:-python3}" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 \
    --implementation cp "${platforms[@]}" --platform manylinux2014_x86_64 -d "$1" $wanted
  du -ch "$1"/*.whl
}

unpack() {
  # NOTE: unpacked, not installed: pip may be missing there.
  for wheel in "$1"/*.whl; do
    python3 -m zipfile -e "$wheel" "$SITE"
  done
  echo "export PYTHONPATH=$SITE"
}

case "$1" in
  download | unpack) "$@" ;;
  *) sed -n 2,12p "$0"; exit 2 ;;
esac
