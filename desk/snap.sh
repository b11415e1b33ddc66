#!/usr/bin/env bash
# snap.sh [VARIANT.so]: the GPU snapshot of main's HEAD and its module (and a variant of it) into .carry
set -e; cd /work/main
so=build/cp312-cp312-linux_x86_64/_C.cpython-312-x86_64-linux-gnu.so
[ $(stat -c %s $so) -gt 20000000 ] || { echo "CPU module!"; exit 1; }
rm -rf /tmp/mods; mkdir -p /tmp/mods; cp $so /tmp/mods/; strip /tmp/mods/*.so
[ -n "$1" ] && { cp $1 /tmp/mods/variant.so; strip /tmp/mods/variant.so; }
(cd /tmp/mods; tar c *.so) | xz -T1 --lzma2=preset=${PRESET:-2},dict=256MiB > .carry/mods.tar.xz; rm -f .carry/_C*.xz
git archive HEAD python tests scripts csrc cmake perf examples docs pyproject.toml README.md CHANGELOG.md Makefile CMakeLists.txt Dockerfile .dockerignore packaging | xz -T2 -3 > .carry/tree.txz
git rev-parse --short=7 HEAD > .carry/commit; ls -la .carry/*.xz .carry/*.txz; cat .carry/commit; git status --short | head
