if [ -e .carry/tree.txz ]; then C=$PWD/.carry; W=$PWD/.whl; rm -rf /tmp/tree; mkdir -p /tmp/tree; tar xJf .carry/tree.txz -C /tmp/tree; cd /tmp/tree; ln -sfn $C .carry; ln -sfn $W .whl; fi
export PYTHONUNBUFFERED=1 FUSEDOPS_COMMIT=$(cat .carry/commit 2>/dev/null)
if [ ! -e /tmp/fo/fusedops/.done-$(cat .carry/commit) ]; then
rm -rf /tmp/fo; mkdir -p /tmp/fo && cp -r python/fusedops /tmp/fo/
mkdir -p /tmp/fo/fusedops/include && cp -r csrc /tmp/fo/fusedops/include/ && cp -r cmake /tmp/fo/fusedops/
tar xJf .carry/mods.tar.xz -C /tmp/fo/fusedops _C.cpython-312-x86_64-linux-gnu.so; rm -rf /tmp/fo2; if tar tf .carry/mods.tar.xz | grep -q variant; then cp -r /tmp/fo /tmp/fo2; if [ -e .carry/py_old.txz ]; then rm -rf /tmp/pyold; mkdir -p /tmp/pyold; tar xJf .carry/py_old.txz -C /tmp/pyold; cp -r /tmp/pyold/python/fusedops/. /tmp/fo2/fusedops/; (cd /tmp/fo2/fusedops && find . -name '*.py' | while read f; do [ -e /tmp/pyold/python/fusedops/$f ] || rm $f; done); fi; tar xJf .carry/mods.tar.xz -C /tmp/fo2/fusedops variant.so; mv /tmp/fo2/fusedops/variant.so /tmp/fo2/fusedops/_C.cpython-312-x86_64-linux-gnu.so; fi
touch /tmp/fo/fusedops/.done-$(cat .carry/commit)
fi
export PYTHONPATH=/tmp/fo
if [ -d .whl ] && [ ! -d /tmp/site ]; then perf/models/install.sh unpack .whl >/dev/null 2>&1 || python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl; fi
export PYTHONPATH=/tmp/fo:/tmp/site SITE=/tmp/site
T0=$SECONDS; t() { echo "## $1 rc $2 at $((SECONDS-T0))"; }
B="python3 -m fusedops bench"; R=/tmp/rows; rm -rf $R; mkdir -p $R
nvidia-smi --query-gpu=name --format=csv,noheader
