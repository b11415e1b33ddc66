#!/usr/bin/env bash
# mkvenv.sh NAME: a worktree /work/wt/NAME on branch NAME with a .venv that sees main's packages.
set -e
cd /work/main
git worktree add -q -b "$1" /work/wt/$1 ${BASE:-next}
cd /work/wt/$1
~/.pyenv/versions/3.12.1/bin/python -m venv --without-pip .venv
echo /work/main/.venv/lib/python3.12/site-packages > .venv/lib/python3.12/site-packages/base.pth
# base.pth does not run the .pth files of main's site-packages, so main's editable install does not show.
for t in ruff clang-format mypy pytest sphinx-build ccache ninja cmake dmypy; do
  s=/work/main/.venv/bin/$t; [ -e $s ] || continue
  if head -c2 $s | grep -q '#!'; then sed "1s|.*|#!/work/wt/$1/.venv/bin/python|" $s > .venv/bin/$t; chmod +x .venv/bin/$t
  else ln -sf $s .venv/bin/$t; fi
done
printf '#!/work/wt/%s/.venv/bin/python\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n' $1 > .venv/bin/pip; chmod +x .venv/bin/pip
touch ".venv/.fusedops-$(cat pyproject.toml scripts/bootstrap | cksum | tr -c '0-9\n' '-')"
echo made /work/wt/$1
