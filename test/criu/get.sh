#!/usr/bin/env bash
# Puts CRIU 4.1 or newer into build/criu, for tests: build/criu/criu is the command. Debian 12's own is 3.17, which dumps
# nothing on kernels from 6.13 on. So the packages of a newer Debian (8 MB) are unpacked beside the system, each checked by
# apt against Debian's signed lists, and run with their own loader and libraries. Nothing of the system is changed: lists,
# packages and the list of what is installed are apt's in a folder of its own. Lists may be old: a mirror can be that of a day.
#
#   test/criu/get.sh                     does nothing where it is there; about 15 seconds
#   SUITES="trixie" test/criu/get.sh     other suites than forky, and trixie if that cannot be had; from 4.2 on CRIU dumps
#                                        sockets of the network on kernels from 6.16 on, which trixie's 4.1.1 does not
set -euo pipefail
cd "$(dirname "$0")/../.."
suites=${SUITES:-forky trixie}
out=build/criu
[ -x "$out/criu" ] && exec "$out/criu" --version

fail() { echo "CRIU is not to be had: $*" >&2; exit 1; }
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || fail "this is no Debian; install criu 4.1 or newer by hand"

# The mirror that the machine uses itself: it may be the only one that can be reached.
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
	grep -v '^ *#' | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1 | tr -d ' ' || true)
[ -n "$mirror" ] || fail "apt's lists name no mirror of Debian"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e "$keys" ] || fail "$keys is missing; install debian-archive-keyring"

mkdir -p build
work=$(mktemp -d "$PWD/build/criu.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/apt/{state/lists/partial,cache/archives/partial,etc/apt.conf.d,empty} "$work/root"
: >"$work/apt/status"
cat >"$work/apt.conf" <<END
Dir::Etc "$work/apt/etc";
Dir::Etc::sourceparts "$work/apt/empty";
Dir::State "$work/apt/state";
Dir::State::status "$work/apt/status";
Dir::Cache "$work/apt/cache";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Retries "3";
Acquire::Check-Valid-Until "false";
Acquire::http::Timeout "20";
APT::Sandbox::User "root";
END
apt-config dump 2>/dev/null | grep -iE '^Acquire::[^"]*(proxy|verify-peer|cainfo)' >>"$work/apt.conf" || true # as the machine reaches it
export APT_CONFIG=$work/apt.conf

found=
for suite in $suites; do
	echo "deb [signed-by=$keys] $mirror $suite main" >"$work/apt/etc/sources.list"
	if apt-get update -qq >"$work/log" 2>&1 &&
		apt-get install -qq -y --no-install-recommends --download-only criu >>"$work/log" 2>&1; then
		found=$suite
		break
	fi
	cat "$work/log" >&2
done
[ -n "$found" ] || fail "apt cannot fetch it from $mirror ($suites)"
for package in "$work"/apt/cache/archives/*.deb; do
	dpkg-deb -x "$package" "$work/root"
done

inside() { (cd "$work/root" && find . "$@" -print -quit | cut -c3-); }
loader=$(inside -path '*lib*' -name 'ld-linux-*')
program=$(inside -path '*bin/criu' -type f)
libraries=$(dirname "$(inside -name libprotobuf-c.so.1)")
[ -n "$loader" ] && [ -n "$program" ] || fail "the packages of $found have no criu"
cat >"$work/root/criu" <<END
#!/bin/sh
root=\$(dirname "\$(readlink -f "\$0")")
exec "\$root/$loader" --library-path "\$root/$libraries" "\$root/$program" "\$@"
END
chmod 755 "$work/root" "$work/root/criu"
"$work/root/criu" --version >/dev/null || fail "criu of $found does not start here"
rm -rf "$work/root/usr/share"

rm -rf "$out"
mv "$work/root" "$out" 2>/dev/null || [ -x "$out/criu" ] # another may have been quicker
"$out/criu" --version # not by exec, so that the trap cleans up
