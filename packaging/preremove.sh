#!/bin/sh
# Before a removal, not before an upgrade: dpkg says "remove", rpm 0 packages left.
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now lgpud.service ||
			echo "lgpu: the daemon may still run: systemctl status lgpud" >&2
	fi
	rm -f /run/lgpu/lgpud.system # no daemon comes back: users have their own again
	;;
esac
