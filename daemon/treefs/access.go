package treefs

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// groupsOf returns the supplementary groups of a process. It waits for the answer to its request, so it is still the one
// that it was.
func groupsOf(pid int) []uint32 {
	if pid == 0 {
		return nil
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil
	}
	return groups(status)
}

// groups reads the line Groups: of /proc/PID/status.
func groups(status []byte) []uint32 {
	_, after, _ := bytes.Cut(status, []byte("\nGroups:"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	var gids []uint32
	for _, field := range strings.Fields(string(line)) {
		if gid, err := strconv.ParseUint(field, 10, 32); err == nil {
			gids = append(gids, uint32(gid))
		}
	}
	return gids
}
