// Package meminfo reads what memory the machine has.
package meminfo

import (
	"os"
	"strconv"
	"strings"
)

// Info is memory in bytes, as proc_meminfo(5) has it; what is not known is 0.
type Info struct {
	Total     uint64
	Available uint64 // without swapping
}

// Read reads it.
func Read() Info {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return Info{}
	}
	return parse(string(text))
}

func parse(text string) (i Info) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		n, err := strconv.ParseUint(fields[1], 10, 54) // of kB, which are KiB here
		switch {
		case err != nil:
		case fields[0] == "MemTotal:":
			i.Total = n << 10
		case fields[0] == "MemAvailable:":
			i.Available = n << 10
		}
	}
	return i
}
