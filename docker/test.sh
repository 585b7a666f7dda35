#!/usr/bin/env bash
# `make docker-test`: the demo as the README starts it, with a node killed and restarted midway, a broken app, and with TLS and
# authenticated nodes, each judged by the runner's exit code; all must come to the same bits. Then once more, under masks, on the nodes
# that are still there, to the same accuracy within the masks' rounding. Last on nodes of a tenth of a core, each with one worker. Needs a
# Docker engine with compose.
set -euo pipefail
cd "$(dirname "$0")/.."
docker version >/dev/null 2>&1 || { echo "no Docker engine answers" >&2; exit 1; }
export COMPOSE_PROJECT_NAME=pfedlora-test-$$
plain="docker compose -f docker/compose.yaml"
tls="$plain -f docker/compose.tls.yaml"
slow="$plain -f docker/compose.slow.yaml"
fail() { echo "FAILED: $1" >&2; $tls logs --tail 40 >&2; $tls down -v --remove-orphans >/dev/null 2>&1; exit 1; }
result() { $plain run --rm --no-deps -T superlink cat "/runs/$1/result.json"; }
sha256() { result "$1" | sed -n 's/.*"shared_sha256": "\([0-9a-f]*\)".*/\1/p'; }
accuracy() { result "$1" | tr -d ' \n' | sed -n 's/.*"accuracy":{"final":\([0-9.]*\).*/\1/p'; }
said() { [ "$($plain logs runner 2>/dev/null | grep -c "$1")" -gt 0 ]; }
timeout 1800 $plain up --build --exit-code-from runner || fail "the demo ends with $?"
undisturbed=$(sha256 demo)
plainly=$(accuracy demo)
$plain down -v >/dev/null 2>&1
echo "the demo: exit code 0, $undisturbed"

$plain up --detach
for _ in $(seq 600); do said "round 1/5" && break; sleep 1; done
said "round 1/5" || fail "no round within 10 minutes"
echo "round 1 is done: killing node1"
$plain kill --signal KILL node1
sleep 3
$plain start node1
timeout 1200 $plain wait runner || fail "the demo with a killed node ends with $?"
killed=$(sha256 demo)
[ "$killed" = "$undisturbed" ] || fail "the killed node changed the result: $killed, $undisturbed"
echo "node killed and restarted midway: exit code 0, $killed"

if $plain run --rm --no-deps -T runner pfedlora run /opt/conf/docker.yaml --superlink plain -o output=/runs/broken -o dataset=folder:/nowhere
then fail "a broken app ends with 0"; fi
echo "broken app: exit code not 0"
$plain down -v >/dev/null 2>&1

$tls up --detach
timeout 1200 $tls wait runner || fail "the demo with TLS ends with $?"
authenticated=$(sha256 demo-tls)
[ "$authenticated" = "$undisturbed" ] || fail "TLS changed the result: $authenticated, $undisturbed"
echo "TLS and authenticated nodes: exit code 0, $authenticated"

timeout 1200 $tls run --rm --no-deps -T runner pfedlora run /opt/conf/docker.yaml --superlink tls -o output=/runs/secure \
  -o secagg.enabled=true -o secagg.max-samples=512 || fail "the demo under masks ends with $?"
result secure | grep -q '"enabled": true' || fail "the demo under masks was not: $(result secure)"
masked=$(accuracy secure)
awk -v a="$masked" -v b="$plainly" 'BEGIN { exit !(a != "" && b != "" && a - b < 0.05 && b - a < 0.05) }' ||
  fail "under masks the demo comes to an accuracy of ${masked:-none}, without to ${plainly:-none}"
$tls down -v >/dev/null 2>&1
echo "secure aggregation: exit code 0, accuracy $masked, plain $plainly"

$slow up --detach
runner=$($slow ps -aq runner)
nodes=$($slow ps -q node0 node1 node2)
samples=0 seen=0
while [ "$(docker inspect --format '{{.State.Running}}' "$runner")" = true ]; do
  for node in $nodes; do # visits are forks of the worker, in its session
    workers=$(docker top "$node" -o pid,sid,args | awk '$1 == $2 && /node_worker/' | wc -l)
    [ "$workers" -le 1 ] || fail "a node has $workers workers: $(docker top "$node" -o pid,sid,args)"
    seen=$((seen + workers)) samples=$((samples + 1))
  done
  sleep 1
done
[ "$(docker wait "$runner")" = 0 ] || fail "the demo on slow nodes ends with $(docker wait "$runner")"
[ "$seen" -gt 0 ] || fail "no worker was seen"
tenth=$(sha256 slow)
[ "$tenth" = "$undisturbed" ] || fail "slow nodes changed the result: $tenth, $undisturbed"
$slow down -v >/dev/null 2>&1
echo "three nodes of a tenth of a core: exit code 0, $tenth, at most one worker a node in $samples samples, $seen with one"
