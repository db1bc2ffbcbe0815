#!/bin/sh
# Builds the conformance suite of the driver API and runs it: test/cuda/run.sh [FOLDER-OF-LIBCUDA [PATTERN...]]
#
# Without a folder the system's own libcuda.so.1 is used, which is a real driver's. For the software GPU give the folder
# of its libraries and name its socket in LGPU_SIM. INCLUDE may name a folder with another header for <lgpu_cuda.h>.
set -e
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
lib=$1
[ $# -gt 0 ] && shift
if [ -z "$lib" ]; then
	found=$(ldconfig -p | sed -n 's/.*libcuda\.so\.1 .*=> //p' | head -n 1)
	[ -n "$found" ] || { echo "$0: no libcuda.so.1 on this machine" >&2; exit 2; }
	lib=$(dirname "$found")
fi
${CC:-cc} -std=c11 -O1 -g -Wall -Wextra -Werror ${CFLAGS:-} -I"${INCLUDE:-$root/tenant/abi/include}" -o "$out/suite" \
	"$here"/suite/*.c -L"$lib" -l:libcuda.so.1 -pthread
LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$out/suite" "$root/sim/kernels" "$@"
