#!/bin/sh
# Before a removal, not before an upgrade: dpkg says "remove", rpm 0 packages left.
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now lgpud.service
	fi
	rm -f /run/lgpu/lgpud.system # no daemon comes back: users have their own again
	;;
esac
