#!/bin/sh
# After an install or an upgrade. A daemon that runs is restarted: programs keep their limits and find the new one. One that
# does not start again is no reason to leave the package half installed.
set -e
if command -v systemd-sysusers >/dev/null 2>&1; then
	systemd-sysusers lgpu.conf
elif command -v groupadd >/dev/null 2>&1; then
	getent group lgpu >/dev/null || groupadd --system lgpu
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
	systemctl try-restart lgpud.service ||
		echo "lgpu: the daemon does not start again; programs go on meanwhile. Why: systemctl status lgpud" >&2
fi
