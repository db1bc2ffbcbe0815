package criu

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/policy/checkpoint"
)

// hindrances are those that Outside finds.
func hindrances(t *testing.T, w Within, sockets bool) (all []checkpoint.Hindrance) {
	t.Helper()
	found, err := around(w, func() (bool, error) { return sockets, nil })
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Process != os.Getpid() {
			t.Errorf("process %d has %v", f.Process, f.Hindrance)
		}
		all = append(all, f.Hindrance)
	}
	return all
}

// Who has a device open is found, by its name.
func TestDevicesOutside(t *testing.T) {
	path := fmt.Sprintf("/dev/nvidia-test-%d", os.Getpid())
	f, err := os.Create(path)
	if errors.Is(err, os.ErrPermission) {
		t.Skip("processes with devices are NOT TESTED: only root makes files in /dev")
	} else if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Error(err)
	}
	its := Within{Processes: []int{os.Getpid(), 1 << 30}, Clients: []int32{7}}
	if found := hindrances(t, its, true); !slices.Contains(found, checkpoint.DeviceFiles) {
		t.Errorf("%v", found)
	}
	its.Clients = append(its.Clients, int32(os.Getpid()))
	if found := hindrances(t, its, true); slices.Contains(found, checkpoint.DeviceFiles) {
		t.Errorf("a client gives its devices up: %v", found)
	}
	its.Clients = nil
	if err := f.Close(); err != nil || slices.Contains(hindrances(t, its, true), checkpoint.DeviceFiles) {
		t.Errorf("a process without devices has some, %v", err)
	}
}

// A socket of the network is found where CRIU dumps none, and no other one is.
func TestSocketsOutside(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(pair[0]), unix.Close(pair[1]) }()
	its := Within{Processes: []int{os.Getpid()}}
	if found := hindrances(t, its, false); slices.Contains(found, checkpoint.Socket) {
		t.Errorf("a socket that is not the network's is found: %v", found)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for _, dumped := range []bool{false, true} {
		if found := hindrances(t, its, dumped); slices.Contains(found, checkpoint.Socket) != (!dumped && !credible(fd)) {
			t.Errorf("CRIU dumps sockets: %v; found %v", dumped, found)
		}
	}
}
