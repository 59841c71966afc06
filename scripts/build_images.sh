#!/usr/bin/env bash
# Build the images coterie-server and coterie-site without a daemon and without a registry, as root on Debian, with
#   apt-get install buildah debootstrap
# The base is a Debian with its Python, made by debootstrap; the wheels are gathered into dist/, so the build itself fetches nothing.
# `--isolation chroot` needs no more rights than chroot, so it works inside a container or a virtual machine too.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
base=localhost/coterie-base:bookworm
build() { buildah ${DRIVER:+--storage-driver "$DRIVER"} "$@"; } # overlay where the kernel has it; vfs copies all, and takes many times as long

rm -f dist/coterie-*.whl # of an older state
"$python" -m build --quiet --wheel --outdir dist
# pip takes torch's build for CPUs where its settings (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL) know one
"$python" -m pip download --quiet --only-binary :all: -c constraints.txt -d dist torch "$(ls dist/coterie-*.whl)[federation]"

if ! build inspect --type image "$base" >/dev/null 2>&1; then
  root=$(mktemp -d)
  trap 'rm -rf "$root"' EXIT
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" >/dev/null
  made=$(build from scratch)
  build copy "$made" "$root" /
  build commit --rm "$made" "$base"
fi

for target in server site; do # the format of Docker, because that of OCI has no HEALTHCHECK
  build bud --isolation chroot --format docker --layers --ulimit "nofile=$(ulimit -Hn)" \
    -f docker/Dockerfile --ignorefile docker/Dockerfile.dockerignore --target "$target" \
    --build-arg BASE="$base" --build-arg PIP_NO_INDEX=1 -t "coterie-$target" .
done
build images
