package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/lgpu/lgpu/daemon/hostcopy"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/tenant/region"
)

// MemoryFile is a file with what has left a device, of a process of an lgpu with memory.overcommit. An image has what is in
// it, as the process does not.
type MemoryFile struct {
	Client int // number of the process
	Device int // index among the lgpu's
	Disk   bool
	Size   uint64 // bytes
	Path   string // where root can open it while the daemon has it
	Inode  uint64
}

// tier is what it is made of.
func (f MemoryFile) tier() hostcopy.Tier {
	if f.Disk {
		return hostcopy.Disk
	}
	return hostcopy.Memory
}

// arrival is a process that is to come back from an image.
type arrival struct {
	lgpu uint64
	pid  int
}

// arrivingFile is one of its files, made anew.
type arrivingFile struct {
	MemoryFile
	copy     *hostcopy.Copy
	identity hostcopy.Identity
}

// imageFiles are files of programs that are written to images, or come back from there.
type imageFiles struct {
	residence *residence
	arriving  map[arrival][]*arrivingFile // guarded by the residence's mu
}

// evict has all that can be moved of an lgpu with memory.overcommit leave its devices, whatever memory.suspend says, or lets
// it come back.
func (i *imageFiles) evict(id uint64, on bool) {
	r := i.residence
	r.post(func(now time.Time) {
		if r.lgpus[id] == nil && !on {
			return
		}
		l := r.managed(id)
		l.evicted, l.frozen = on, l.frozen && on
		for _, of := range r.holders {
			for n := range of.devices {
				if of.id.LGPU == id && on {
					of.devices[n].failure = ""
				}
			}
		}
		r.policy.Suspend(now, id, l.suspended || l.evicted)
	})
}

// glance is the time between two looks at what keep does.
const glance = time.Millisecond

// await waits until all that can be moved of an lgpu has left its devices. An error says why it does not.
func (i *imageFiles) await(ctx context.Context, id uint64, devices []gpu.UUID) error {
	r := i.residence
	return i.until(ctx, func() (bool, error) {
		for _, uuid := range devices {
			if r.gone(id, uuid) {
				continue
			}
			_, why, _ := r.of(id, uuid, 0)
			if why != "" {
				return false, fmt.Errorf("its memory does not leave device %s: %s", r.daemon.inventory.short(uuid), why)
			}
			return false, nil
		}
		return true, nil
	})
}

// until looks at something until it is so, or fails, after all that has been posted before.
func (i *imageFiles) until(ctx context.Context, look func() (bool, error)) error {
	posted := make(chan struct{})
	i.residence.post(func(time.Time) { close(posted) })
	select {
	case <-posted:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for {
		if is, err := look(); is || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(glance):
		}
	}
}

// files returns the files of an lgpu's processes, which grow no more until evict lets their memory come back.
func (i *imageFiles) files(ctx context.Context, id uint64) (all []MemoryFile, err error) {
	r := i.residence
	r.post(func(time.Time) {
		if l := r.lgpus[id]; l != nil {
			l.frozen = true
		}
	})
	err = i.until(ctx, func() (bool, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		all = nil
		for _, of := range r.holders {
			for n := range of.devices {
				d := &of.devices[n]
				if of.id.LGPU != id {
					continue
				}
				if d.growing {
					return false, nil
				}
				for tier, c := range d.files {
					if c == nil || d.sizes[tier] == 0 {
						continue
					}
					g, err := c.Grow(0, hostcopy.Ahead)
					if err != nil {
						return false, fmt.Errorf("file with memory of process %d: %w", of.peer.PID, err)
					}
					all = append(all, described(of.peer.PID, n, hostcopy.Tier(tier), g))
				}
			}
		}
		return true, nil
	})
	return all, err
}

// described is a file as others are told of it.
func described(pid, device int, tier hostcopy.Tier, g hostcopy.Grown) MemoryFile {
	return MemoryFile{Client: pid, Device: device, Disk: tier == hostcopy.Disk, Size: g.Size,
		Path: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), g.FD), Inode: g.Inode}
}

// expect makes files anew for processes that come back from an image, and which have them when they are clients. dismiss ends
// that.
func (i *imageFiles) expect(id uint64, devices []gpu.UUID, files []MemoryFile) (made []MemoryFile, err error) {
	r := i.residence
	all := map[arrival][]*arrivingFile{}
	defer func() {
		if err != nil {
			closeArriving(all)
		}
	}()
	for _, f := range files {
		if f.Device < 0 || f.Device >= len(devices) || f.Size == 0 || f.Size > r.most(devices[f.Device]) {
			return nil, fmt.Errorf("a file of %d bytes for device %d of process %d: there is no such one", f.Size, f.Device, f.Client)
		}
		key := arrival{id, f.Client}
		for _, other := range all[key] {
			if other.Device == f.Device && other.Disk == f.Disk {
				return nil, fmt.Errorf("two files for device %d of process %d", f.Device, f.Client)
			}
		}
		a := &arrivingFile{copy: r.copy(devices[f.Device], f.tier())}
		all[key] = append(all[key], a)
		g, err := a.copy.Grow(f.Size, hostcopy.Urgent)
		if err != nil {
			return nil, fmt.Errorf("a file for memory of process %d: %w", f.Client, err)
		}
		if g.Size != f.Size {
			return nil, fmt.Errorf("a file of %d bytes for process %d: its size is not possible", f.Size, f.Client)
		}
		a.MemoryFile, a.identity = described(f.Client, f.Device, f.tier(), g), g.Identity
		made = append(made, a.MemoryFile)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range all {
		if i.arriving[key] != nil {
			return nil, errors.New("it is being restored already")
		}
	}
	for key, of := range all {
		i.arriving[key] = of
	}
	return made, nil
}

// dismiss ends the expectation of an lgpu's processes, and gives up the files of those that have not come.
func (i *imageFiles) dismiss(id uint64) {
	left := map[arrival][]*arrivingFile{}
	i.residence.mu.Lock()
	for key, files := range i.arriving {
		if key.lgpu == id {
			left[key] = files
			delete(i.arriving, key)
		}
	}
	i.residence.mu.Unlock()
	closeArriving(left)
}

func closeArriving(all map[arrival][]*arrivingFile) {
	for _, files := range all {
		for _, f := range files {
			f.copy.Close()
		}
	}
}

// arrived gives a new client the files that were made for it. Called by keep with mu held.
func (i *imageFiles) arrived(of *holding) {
	key := arrival{of.id.LGPU, of.peer.PID}
	for _, f := range i.arriving[key] {
		d := &of.devices[f.Device]
		d.files[f.tier()], d.sizes[f.tier()], d.away = f.copy, f.Size, true
		d.wanted += f.Size
		noted := d.noted
		noted.Stores[f.tier()] = region.Inode{Device: f.identity.Device, Number: f.identity.Inode}
		i.residence.note(of, f.Device, noted)
	}
	delete(i.arriving, key)
}
