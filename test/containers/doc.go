// Package containers tests lgpus in containers: what podman starts by the daemon's specifications, as root and as a user,
// on the software GPU. It needs root and Debian's podman, and makes its images from this machine's files.
package containers
