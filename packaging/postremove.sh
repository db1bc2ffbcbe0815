#!/bin/sh
# After a removal. What lgpus there were stays, unless dpkg says "purge".
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
if [ "$1" = purge ]; then
	rm -rf /var/lib/lgpu
fi
