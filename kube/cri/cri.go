// Package cri knows which container runtimes give a container what a claim was given. Kubernetes hands that over by CDI alone,
// and a runtime that ignores CDI starts the container without a GPU and without a word.
package cri

import (
	"fmt"
	"strconv"
	"strings"
)

// How to go on.
const remedy = "; if this one is set up to read CDI, start the driver with --cdi=on"

// Reads returns why a runtime does not read CDI, or may not, by the containerRuntimeVersion of its Node: NAME://VERSION.
func Reads(version string) error {
	name, number, _ := strings.Cut(version, "://")
	major, minor, err := parse(number)
	if err != nil {
		return fmt.Errorf("the Node's container runtime is %.64q, and it is not known whether that reads CDI%s", version, remedy)
	}
	older := func(than ...int) bool { return major < than[0] || major == than[0] && minor < than[1] }
	switch name {
	case "containerd":
		switch {
		case older(1, 7):
			return fmt.Errorf("the Node's container runtime, %.64s, ignores CDI: the pod would run without a GPU; "+
				"containerd 2.0 or later reads it", version)
		case older(2, 0):
			return fmt.Errorf("the Node's container runtime, %.64s, reads CDI only where enable_cdi is set in its configuration, "+
				"and 2.0 or later always%s", version, remedy)
		}
		return nil
	case "cri-o":
		if older(1, 23) {
			return fmt.Errorf("the Node's container runtime, %.64s, ignores CDI: the pod would run without a GPU; "+
				"CRI-O 1.23 or later reads it", version)
		}
		return nil
	}
	return fmt.Errorf("the Node's container runtime is %.64s, and it is not known whether that reads CDI%s", version, remedy)
}

// parse reads the first two numbers of a version.
func parse(text string) (major, minor int, err error) {
	first, rest, found := strings.Cut(strings.TrimPrefix(text, "v"), ".")
	second := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	if major, err = strconv.Atoi(first); err != nil || !found {
		return 0, 0, fmt.Errorf("%q is no version", text)
	}
	minor, err = strconv.Atoi(second)
	return major, minor, err
}
