#!/bin/sh
# Makes sure that a Chromium is there for the browser tests and the screenshots: Debian's package where it is missing.
set -eu

for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null 2>&1; then
    echo "browser: $(command -v "$name")"
    exit 0
  fi
done

if ! command -v apt-get >/dev/null 2>&1; then
  echo "no Chromium found, and no apt-get to install it: install the package 'chromium' with this system's package manager" >&2
  exit 1
fi
if [ "$(id -u)" -eq 0 ]; then
  run=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
  run="sudo -n"
else
  echo "no Chromium found, and no right to install it: ask for 'apt-get install chromium' (as root)" >&2
  exit 1
fi

$run apt-get update -qq
$run env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium
echo "browser: $(command -v chromium)"
