package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/checkpoint/driver"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/contain"
	"github.com/lgpu/lgpu/internal/fence"
	"github.com/lgpu/lgpu/policy/checkpoint"
)

// fileOf is the file of a device, and what it is; false for a device that has none of its own.
func fileOf(d gpu.Device) (file string, of fence.Device, is bool) {
	if _, err := fmt.Sscanf(d.Node, "%d:%d", &of.Major, &of.Minor); err != nil {
		return "", of, false
	}
	return fmt.Sprintf("/dev/nvidia%d", of.Minor), of, true
}

// reaches reports whether a process can open the file of a device, as far as what it sees as /dev says so.
func reaches(pid int, d gpu.Device) bool {
	file, node, is := fileOf(d)
	if !is {
		return true
	}
	path := fmt.Sprintf("/proc/%d/root%s", pid, file)
	var st unix.Stat_t
	var system unix.Statfs_t
	return unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(node.Major, node.Minor) &&
		unix.Statfs(path, &system) == nil && system.Flags&unix.ST_NODEV == 0
}

// mayReach reports whether a process reaches a device, or can be made to by refit.
func mayReach(pid int, d gpu.Device) bool {
	file, _, _ := fileOf(d)
	return reaches(pid, d) || contain.Exchangeable(pid, file)
}

// refit has a contained process that is about to come to devices reach their files, and those of no others. Nothing is done
// for one that reaches them already.
func refit(pid int, devices []gpu.Device) error {
	var open []string
	var allowed []fence.Device
	var own []fence.Owned
	all := true
	for _, d := range devices {
		if file, node, is := fileOf(d); is {
			open, allowed = append(open, file), append(allowed, node)
		}
		own = append(own, fence.Owned{GPU: d.UUID.String()})
		all = all && reaches(pid, d)
	}
	if all {
		return nil
	}
	others, err := fence.Others(own)
	if err != nil {
		return err
	}
	hide, denied := fence.Files(others)
	if err := fence.Change(pid, allowed, denied); err != nil {
		return err
	}
	if err := contain.Exchange(pid, open, hide); err != nil {
		return err
	}
	for _, d := range devices {
		if !reaches(pid, d) {
			return fmt.Errorf("process %d cannot be made to reach device %s", pid, d.Short())
		}
	}
	return nil
}

// broughtBack has the driver restore a process on the devices that its lgpu has now.
func (m *releaseMove) broughtBack(ctx context.Context, p releasedProcess) error {
	n := m.releases.daemon
	record, _ := n.lgpus.record(m.lgpu.ID)
	var devices []gpu.Device
	for _, uuid := range record.Devices {
		if d := n.inventory.device(uuid); d != nil {
			devices = append(devices, d.Device)
		}
	}
	if err := refit(p.PID, devices); err != nil {
		return err
	}
	pairs, err := m.releases.pairs(m.lgpu, p)
	if err != nil {
		return err
	}
	err = m.helper.Restore(ctx, p.PID, pairs)
	own := slices.DeleteFunc(slices.Clone(pairs), func(pair driver.Pair) bool { return !slices.Contains(record.Devices, pair.New) })
	if errors.Is(err, driver.InvalidValue) && len(own) < len(pairs) {
		// All devices of the process have to be named, and none that it cannot open: a contained one has its own alone.
		err = m.helper.Restore(ctx, p.PID, own)
	}
	return err
}

// pairs says which device takes the place of which where a process comes back to others than it has left.
func (r *Releases) pairs(l *released, p releasedProcess) (all []driver.Pair, err error) {
	record, _ := r.daemon.lgpus.record(l.ID)
	r.mu.Lock()
	left := l.On[p.PID]
	r.mu.Unlock()
	if l.Pairs != nil || left == nil || slices.Equal(left, record.Devices) {
		return l.Pairs, nil
	}
	var names []string
	named := map[string]gpu.UUID{}
	for _, d := range r.daemon.inventory.usable(record.Sim) {
		names = append(names, d.Identity())
		named[d.Identity()] = d.UUID
	}
	wanted := map[string]string{}
	for i, d := range left {
		wanted[d.String()] = record.Devices[i].String()
	}
	places, err := checkpoint.Devices(names, names, wanted)
	for from, to := range places {
		all = append(all, driver.Pair{Old: named[from], New: named[to]})
	}
	return all, err
}
