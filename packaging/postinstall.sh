#!/bin/sh
# After an install or an upgrade. A daemon that runs is restarted: programs keep their limits and find the new one.
set -e
if command -v systemd-sysusers >/dev/null 2>&1; then
	systemd-sysusers lgpu.conf
elif command -v groupadd >/dev/null 2>&1; then
	getent group lgpu >/dev/null || groupadd --system lgpu
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart lgpud.service
fi
