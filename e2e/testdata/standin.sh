#!/bin/sh
# Stands where the software of a feature would: answers a probe of its version,
# and listens or reports ready where the catalogue's program does.
case "$*" in *version* | *import*) exit 0 ;; esac
case "$0" in
*nostr-rs-relay) exec /bin/testprog listen 7777 ;;
*Xvnc) exec /bin/testprog listen /tmp/.X11-unix/X1 ;;
*agentbox-indexer) exec /bin/testprog notify READY=1 ;;
esac
exec /bin/testprog sleep
