#!/usr/bin/env bash
# Rehearse docker/compose.yaml with the images of scripts/build_images.sh: a federation of a server and two sites in containers of
# their own, from `init` to the replay of its run. As root on Debian, with
#   apt-get install podman podman-compose netavark aardvark-dns runc curl
# It needs no systemd: health checks are run by hand, as the timer of an engine does. The first thing that is not as docs/containers.md
# says ends it with a line.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${ROUNDS:-40}
work=$(mktemp -d)
clinics=$work/clinics
# no limit above our own can be set without CAP_SYS_RESOURCE; crun refuses machines with both versions of cgroups, runc does not
cat >"$work/containers.conf" <<CONFIG
[containers]
default_ulimits = ["nofile=$(ulimit -Hn):$(ulimit -Hn)", "nproc=4096:4096"]
[engine]
runtime = "runc"
events_logger = "file"
CONFIG
export CONTAINERS_CONF=$work/containers.conf
export COTERIE_FOLDER=$clinics COTERIE_ROWS=$work/rows COTERIE_USER=10001:10001
export COTERIE_GATE=${COTERIE_GATE:-127.0.0.1:8443} COTERIE_METRICS=${COTERIE_METRICS:-9464}
compose() { podman-compose -p coterie-rehearsal -f docker/compose.yaml "$@" >>"$work/compose.log" 2>&1; }
in_image() { podman run --rm --no-healthcheck --network none --user "$COTERIE_USER" -v "$work:/work" -w /work --entrypoint "$1" coterie-server "${@:2}" 2>>"$work/compose.log"; }
box() { echo "coterie-rehearsal_$1_1"; }
state() { podman inspect --format "{{.State.$2}}" "$(box "$1")"; }
said() { podman logs "$(box "$1")" 2>&1; }
fail() {
  echo "FAIL  $*" >&2
  for name in server north south; do echo "--- $name"; said "$name" | tail -5 | cut -c1-300; done >&2
  exit 1
}
ok() { printf 'ok    %3d s  %s\n' $((SECONDS - begin)) "$*"; begin=$SECONDS; }
until_said() { # WHO TEXT [COUNT]: so many lines with the text
  for _ in $(seq 1200); do
    if [ "$(said "$1" | grep -c -- "$2")" -ge "${3:-1}" ]; then return; fi
    sleep 0.2
  done
  fail "$1 did not say '$2' in four minutes"
}
healthy() { # an engine calls a container unhealthy after three failures
  for _ in 1 2 3; do if podman healthcheck run "$(box "$1")" >>"$work/compose.log" 2>&1; then return; fi; done
  fail "$1 is not healthy: $(tail -1 "$work/compose.log")"
}
finish() {
  compose down -t 10 || true
  rm -rf "$work"
}
trap finish EXIT
trap 'echo "FAIL  line $LINENO: $BASH_COMMAND" >&2' ERR
begin=$SECONDS

install -d -o 10001 -g 10001 "$work"
in_image python3 -c "
from pathlib import Path
from coterie.deploy.rehearsal import write_digits
write_digits(Path('rows'), ['north', 'south'])"
in_image coterie federation init clinics --sites north,south --address server:8443 --like rows/north.csv \
  --method ditto --rounds "$rounds" --hidden 32 >/dev/null
ok "init inside the image made $(find "$clinics" -type f | wc -l) files"

compose up -d
until_said server "listening on"
until_said north "approve"
until_said south "approve"
said server | grep -q "round 1 of" && fail "a round was played that nobody agreed to"
ok "server and sites are up; both sites wait for their operators"

if [ "$(podman exec "$(box north)" id -u)" != 10001 ]; then fail "a site runs as another user than 10001"; fi
if podman exec "$(box north)" touch /written 2>/dev/null; then fail "the root of a site can be written"; fi
if podman exec "$(box north)" touch /rows/north.csv 2>/dev/null; then fail "a site's rows can be written"; fi
for name in north south; do
  offers=$(podman exec "$(box $name)" coterie federation list /data)
  digest=${offers%%:*}
  podman exec "$(box $name)" coterie federation approve /data "$digest" >/dev/null
done
until_said server "round 3 of"
ok "agreed to $digest by list and approve, without a terminal; rounds are played"

for name in server north south; do healthy "$name"; done
address=http://127.0.0.1:$COTERIE_METRICS
curl -fsS -m 5 "$address/health" >/dev/null || fail "no answer from $address/health"
lines=$(curl -fsS -m 5 "$address/metrics" | grep -c '^coterie_')
for other in $(hostname -I); do
  if curl -fsS -m 2 "http://$other:$COTERIE_METRICS/health" >/dev/null 2>&1; then fail "metrics are reachable at $other"; fi
done
ok "health checks of all three answer; $lines metrics at 127.0.0.1 and at no other address"

compose stop server
[ "$(state server ExitCode)" = 143 ] || fail "a stopped server ended with exit code $(state server ExitCode)" # with 0 a Job would be complete
said server | grep -q "stopped" || fail "the server does not say that it was stopped"
ok "SIGTERM ended the server with exit code 143"
compose start server
until_said server "going on after round"
ok "started again it goes on: $(said server | grep -o 'going on after round[^"]*' | tail -1)"

before=$(state south Pid)
kill -9 "$before"
for _ in $(seq 150); do
  now=$(state south Pid)
  if [ "$now" != 0 ] && [ "$now" != "$before" ]; then break; fi
  sleep 0.2
done
[ "$now" != 0 ] && [ "$now" != "$before" ] || fail "a killed site was not started again"
ok "a killed site is started again by its restart policy"

for _ in $(seq 3000); do
  [ "$(state server Status)" = exited ] && break
  sleep 0.2
done
[ "$(state server Status) $(state server ExitCode)" = "exited 0" ] || fail "the server did not end with its run: $(state server Status) $(state server ExitCode)"
said server | grep -q "round $rounds of $rounds" || fail "the last round is missing"
ok "the run of $rounds rounds ended, and the server with it"

for name in north south; do
  until_said "$name" "is over"
  healthy "$name"
done
compose stop north south
for name in north south; do
  [ "$(state $name ExitCode)" = 143 ] || fail "$name ended with exit code $(state $name ExitCode)"
  [ -s "$clinics/sites/$name/model.safetensors" ] || fail "$name has no model"
done
ok "SIGTERM ended both sites with exit code 143; each has its model"

replayed=$(in_image coterie federation replay clinics --data rows)
grep -q "at most 0.0$" <<<"$replayed" || fail "$replayed"
ok "$replayed"
