package daemon

import (
	"path"

	"github.com/lgpu/lgpu/policy/limits"

	"golang.org/x/sys/unix"
)

// halfOfMemory is half of the machine's memory in bytes.
func halfOfMemory() uint64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return uint64(info.Totalram) * uint64(info.Unit) / 2
}

// hadPrograms reports whether programs use an lgpu, or have used it: it has devices from its first use on.
func (g *lgpus) hadPrograms(id uint64) bool {
	record, known := g.record(id)
	return known && len(record.Devices) > 0
}

// checkOvercommit refuses spatial mode to an lgpu whose memory may leave its devices.
func checkOvercommit(tree *limits.Tree, spec AttachSpec, at string) error {
	dir, err := tree.Directory(at)
	if err != nil { // one that is made has what the group above it has
		dir, _ = tree.Directory(path.Dir(at))
	}
	if spec.Spatial && (spec.Limits.Overcommit || dir.Overcommit) {
		return &Error{Class: ErrInvalid, Field: "memory_overcommit", Value: "1",
			Reason: "in spatial mode (MPS) memory cannot leave the device", Remedy: "leave out one of --overcommit and --spatial"}
	}
	return nil
}
