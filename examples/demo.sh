#!/usr/bin/env bash
# Boots an example in the best isolation this machine offers, shows it and stops
# it. DEMO=container|pidns|userns|plain chooses another isolation.
#
#   container  hardened, by podman and runc (root): the image of `make image`
#   pidns      PID 1 of a pid namespace of its own (root)
#   userns     the same in a user namespace, unprivileged
#   plain      an ordinary process that reaps what its programs leave behind
set -euo pipefail
cd "$(dirname "$0")/.."

best() {
	if [ "$(id -u)" -eq 0 ] && command -v podman >/dev/null && command -v runc >/dev/null; then
		echo container
	elif [ "$(id -u)" -eq 0 ] && unshare --pid --fork --mount-proc true 2>/dev/null; then
		echo pidns
	elif unshare --user --map-root-user --pid --fork --mount-proc true 2>/dev/null; then
		echo userns
	else
		echo plain
	fi
}

mode=${DEMO:-$(best)}
dir=$(mktemp -d)
log=$dir/log
management=${DEMO_PORT:-19090} metrics=$((${DEMO_PORT:-19090} + 1))
title() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
[ -t 1 ] || title() { printf '\n== %s\n' "$*"; }

unshare_flags=(--pid --fork --mount-proc --kill-child)
case $mode in
container)
	echo "building the image and loading it into podman; the first time, this may take minutes"
	make -s image >/dev/null
	engine=(podman --storage-driver vfs --root "$PWD/dist/containers" --runtime runc --cgroup-manager cgroupfs)
	"${engine[@]}" load -q -i "dist/agentbox-$(go env GOARCH).tar" >/dev/null
	name=agentinit-demo-$$
	inside() { "${engine[@]}" exec "$name" "$@"; }
	ctl() { inside /bin/agentctl "$@"; }
	"${engine[@]}" run --name "$name" --read-only --cap-drop ALL --security-opt no-new-privileges \
		--user 1000:1000 --network none --tmpfs /run --tmpfs /tmp \
		--ulimit nofile=1024:1024 --ulimit nproc=4096:4096 localhost/agentbox:dev >"$log" 2>&1 &
	stop() { "${engine[@]}" stop -t 30 "$name" >/dev/null; }
	# shellcheck disable=SC2317 # called by the trap
	cleanup() { "${engine[@]}" rm -f -t 0 "$name" >/dev/null 2>&1 || true; }
	;;
pidns | userns | plain)
	box=("bin/agentinit" --manifest examples/webapp.toml --root "$dir/box")
	[ "$mode" = userns ] && unshare_flags+=(--user --map-root-user)
	[ "$mode" = plain ] || box=(unshare "${unshare_flags[@]}" "${box[@]}")
	mkdir "$dir/box"
	ctl() { bin/agentctl --socket "$dir/box/run/agentbox/agentinit.sock" "$@"; }
	DATA=$dir/data PORT=$((management + 2)) MANAGEMENT_API_HOST=127.0.0.1 MANAGEMENT_API_PORT=$management \
		AGENTBOX_METRICS_PORT=$metrics "${box[@]}" >"$log" 2>&1 &
	stop() { ctl shutdown >/dev/null; }
	# shellcheck disable=SC2317 # called by the trap
	cleanup() { kill -9 "$pid" 2>/dev/null || true; }
	;;
*)
	echo "DEMO=$mode: want container, pidns, userns or plain" >&2
	exit 2
	;;
esac
pid=$!
trap 'cleanup; rm -rf "$dir"' EXIT

title "boot ($mode)"
for _ in $(seq 200); do
	ctl version >/dev/null 2>&1 && break
	kill -0 "$pid" 2>/dev/null || break
	sleep 0.05
done
if ! ctl wait --for ready --timeout 30s; then
	echo "the box did not become ready; its log:" >&2
	cat "$log" >&2
	exit 1
fi

title "agentctl status"
# A program that has just been started makes status 3; that is what it is for.
ctl status || [ $? -eq 3 ]
title "/ready"
if [ "$mode" = container ]; then
	ctl ready # no network in there, so by the socket
else
	curl -fsS "http://127.0.0.1:$management/ready?verbose"
fi
title "a few of the metrics"
ctl metrics | grep -E '^agentinit_(ready|boot_duration_seconds|program_up|reaped_processes_total)[ {]'
title "agentctl boot"
ctl boot

title "stop"
stop
code=0
wait "$pid" || code=$?
grep -o '"message":"agentinit: exit [^"]*"' "$log" | tail -1 || true
echo "exit status $code"
exit "$code"
